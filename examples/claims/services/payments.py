"""The payment provider: strict about idempotency keys, and sometimes silent after it has paid."""

from __future__ import annotations

import argparse
import json
import random
import threading
from collections import Counter
from dataclasses import asdict
from email.message import Message
from http.server import ThreadingHTTPServer
from pathlib import Path

from examples.claims.services.ledger import KeyReusedError, Ledger
from examples.claims.services.server import Reply, make_server, serve_until_told


class PaymentProvider:
    """Answers ``POST /payments``; ``GET /stats`` gives the books in figures.

    Args:
        drop_share: Part of the payments that are made, but whose answer is never sent.
        failure_share: Part of the requests that get a 503 before anything is done.
    """

    def __init__(self, ledger: Ledger, *, seed: int, drop_share: float = 0.12, failure_share: float = 0.05) -> None:
        self._ledger = ledger
        self._dice = random.Random(seed)
        self._drop_share = drop_share
        self._failure_share = failure_share
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(requests=0, dropped_answers=0, failures=0, reused_keys=0)

    def pay(self, headers: Message, body: bytes) -> Reply:
        """Pay once per key."""
        key = headers.get("Idempotency-Key")
        if not key:
            return Reply(400, {"error": "a payment needs an Idempotency-Key header"})
        with self._lock:
            fails = self._dice.random() < self._failure_share
            drops = not fails and self._dice.random() < self._drop_share
            self._counts.update(requests=1, failures=fails, dropped_answers=drops)
        if fails:
            return Reply(503, {"error": "busy, try again"})
        try:
            answer, _ = self._ledger.pay_once(key, json.loads(body))
        except KeyReusedError as error:
            with self._lock:
                self._counts.update(reused_keys=1)
            return Reply(422, {"error": str(error)})
        return Reply(200, answer, dropped=drops)

    def stats(self, _headers: Message, _body: bytes) -> Reply:
        """The books, and how often this service misbehaved."""
        with self._lock:
            counts = dict(self._counts)
        return Reply(200, counts | asdict(self._ledger.summarize()))

    def make_server(self, port: int = 0) -> ThreadingHTTPServer:
        """Make the HTTP server; 0 takes a free port."""
        return make_server({("POST", "/payments"): self.pay, ("GET", "/stats"): self.stats}, port)


def main() -> None:
    """Run the provider as a process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    ledger = Ledger(options.ledger)
    serve_until_told(PaymentProvider(ledger, seed=options.seed).make_server(options.port))
    ledger.close()


if __name__ == "__main__":
    main()
