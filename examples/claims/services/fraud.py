"""The fraud service: an outside company whose server times out and fails now and then.

A claim's score is always the same, so that a test can tell what should become of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import threading
from collections import Counter
from email.message import Message
from http.server import ThreadingHTTPServer

from examples.claims.services.server import Reply, make_server, serve_until_told


def fraud_score(claim_id: str) -> float:
    """From 0 (honest) to 1 (suspicious), evenly spread over the claims, to three places."""
    digest = hashlib.sha256(claim_id.encode()).digest()
    return int.from_bytes(digest[:4], "big") % 1001 / 1000


class FraudService:
    """Answers ``POST /score``; ``GET /stats`` tells how often it misbehaved.

    Args:
        timeout_share: Part of the requests that get no answer for `hang_seconds`.
        failure_share: Part of the requests that get a 500.
    """

    def __init__(
        self, *, seed: int, timeout_share: float = 0.05, failure_share: float = 0.1, hang_seconds: float = 1.5
    ) -> None:
        self._dice = random.Random(seed)
        self._timeout_share = timeout_share
        self._failure_share = failure_share
        self._hang_seconds = hang_seconds
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(requests=0, timeouts=0, failures=0)
        self._closing = threading.Event()

    def score(self, _headers: Message, body: bytes) -> Reply:
        """Answer one request, if in the mood."""
        with self._lock:
            roll = self._dice.random()
            hangs = roll < self._timeout_share
            fails = not hangs and roll < self._timeout_share + self._failure_share
            self._counts.update(requests=1, timeouts=hangs, failures=fails)
        if hangs:
            self._closing.wait(self._hang_seconds)
            return Reply(dropped=True)
        if fails:
            return Reply(500, {"error": "the scoring model is having a moment"})
        return Reply(200, {"score": fraud_score(json.loads(body)["claim_id"])})

    def stats(self, _headers: Message, _body: bytes) -> Reply:
        """How many requests there were, and what became of them."""
        with self._lock:
            return Reply(200, dict(self._counts))

    def make_server(self, port: int = 0) -> ThreadingHTTPServer:
        """Make the HTTP server; 0 takes a free port."""
        return make_server({("POST", "/score"): self.score, ("GET", "/stats"): self.stats}, port)


def main() -> None:
    """Run the service as a process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    serve_until_told(FraudService(seed=options.seed).make_server(options.port))


if __name__ == "__main__":
    main()
