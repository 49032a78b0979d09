"""The worker process of the demo: engine, worker and front desk on one SQLite file.

This is all it takes to run Clew embedded. The demo kills this process with SIGKILL and starts it again, with the same
arguments, until every claim is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clew.client import Client
from clew.worker import Worker
from examples.claims.activities import ClaimActivities, Offices
from examples.claims.front_desk import TASK_QUEUE, FrontDesk
from examples.claims.plan import Plan
from examples.claims.workflows import ClaimProcess

THREADS = 48
"""Activities of the example are ordinary blocking functions; this many run at a time."""


async def run(directory: Path, fraud_url: str, payment_url: str) -> None:
    """Work on the claims in `directory` until all are closed."""
    offices = Offices(
        fraud_url=fraud_url,
        payment_url=payment_url,
        register=directory / "register",
        letters=directory / "letters",
        assessor_desk=directory / "desk",
    )
    office = ClaimActivities(offices)
    async with await Client.connect(f"sqlite:{directory / 'claims.db'}") as client:
        worker = Worker(
            client,
            task_queue=TASK_QUEUE,
            workflows=[ClaimProcess],
            activities=[
                office.register_claim,
                office.send_letter,
                office.score_fraud,
                office.ask_assessor,
                office.pay_out,
            ],
            activity_executor=ThreadPoolExecutor(THREADS),
            max_concurrent_activities=THREADS,
        )
        async with worker:
            print("ready", flush=True)
            await FrontDesk(client, Plan.read(directory / "plan.json"), offices.assessor_desk).run()


def main() -> None:
    """Run the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--fraud-url", required=True)
    parser.add_argument("--payment-url", required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(run(options.directory, options.fraud_url, options.payment_url))


if __name__ == "__main__":
    main()
