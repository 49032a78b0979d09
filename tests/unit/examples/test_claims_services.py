"""The outside world of the claims example: does it misbehave as promised, and only so?"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from clew.exceptions import ApplicationError
from examples.claims.http_json import post_json
from examples.claims.services.fraud import FraudService, fraud_score
from examples.claims.services.ledger import KeyReusedError, Ledger
from examples.claims.services.payments import PaymentProvider

PAYMENT = {"reference": "claim-1", "payee": "Ada", "amount_cents": 1234}


@contextlib.contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    books = Ledger(tmp_path / "ledger.db")
    yield books
    books.close()


class TestLedger:
    def test_repeat_gets_the_first_answer_and_pays_once(self, ledger: Ledger) -> None:
        first, was_repeat = ledger.pay_once("k1", PAYMENT)
        again, is_repeat = ledger.pay_once("k1", dict(reversed(PAYMENT.items())))
        assert (again, was_repeat, is_repeat) == (first, False, True)
        summary = ledger.summarize()
        assert (summary.payment_count, summary.repeat_count, summary.amount_cents) == (1, 1, 1234)

    def test_same_key_with_another_request_is_refused_and_pays_nothing(self, ledger: Ledger) -> None:
        ledger.pay_once("k1", PAYMENT)
        with pytest.raises(KeyReusedError, match="k1 belongs to another request"):
            ledger.pay_once("k1", PAYMENT | {"amount_cents": 1})
        assert ledger.summarize().amount_cents == 1234

    def test_another_key_pays_again(self, ledger: Ledger) -> None:
        ledger.pay_once("k1", PAYMENT)
        ledger.pay_once("k2", PAYMENT)
        assert ledger.summarize().references == {"claim-1": 2}

    def test_incomplete_request_leaves_no_trace(self, ledger: Ledger) -> None:
        with pytest.raises(Exception, match="amount_cents"):
            ledger.pay_once("k1", {"reference": "claim-1", "payee": "Ada"})
        ledger.pay_once("k1", PAYMENT)
        assert ledger.summarize().payment_count == 1

    def test_books_survive_reopening(self, tmp_path: Path) -> None:
        books = Ledger(tmp_path / "kept.db")
        first, _ = books.pay_once("k1", PAYMENT)
        books.close()
        books = Ledger(tmp_path / "kept.db")
        assert books.pay_once("k1", PAYMENT) == (first, True)
        books.close()

    def test_one_key_from_many_threads_pays_once(self, ledger: Ledger) -> None:
        answers: list[str] = []
        threads = [
            threading.Thread(target=lambda: answers.append(ledger.pay_once("k", PAYMENT)[0]["payment_id"]))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == ["pay-1"] * 8
        assert ledger.summarize().repeat_count == 7


class TestPaymentProvider:
    def pay(self, url: str, key: str, amount_cents: int = 1234) -> dict[str, object]:
        body = PAYMENT | {"amount_cents": amount_cents}
        answer: dict[str, object] = post_json(f"{url}/payments", body, headers={"Idempotency-Key": key}, timeout=5)
        return answer

    def test_acts_before_it_drops_the_answer(self, ledger: Ledger) -> None:
        with serving(PaymentProvider(ledger, seed=1, drop_share=1, failure_share=0).make_server()) as url:
            with pytest.raises(http.client.RemoteDisconnected):
                self.pay(url, "k1")
            assert ledger.summarize().payment_count == 1

    def test_fails_before_it_acts(self, ledger: Ledger) -> None:
        with serving(PaymentProvider(ledger, seed=1, drop_share=0, failure_share=1).make_server()) as url:
            with pytest.raises(OSError, match="503"):
                self.pay(url, "k1")
            assert ledger.summarize().payment_count == 0

    def test_refuses_a_key_used_for_another_request_for_good(self, ledger: Ledger) -> None:
        with serving(PaymentProvider(ledger, seed=1, drop_share=0, failure_share=0).make_server()) as url:
            assert self.pay(url, "k1") == self.pay(url, "k1") == {"payment_id": "pay-1", "amount_cents": 1234}
            with pytest.raises(ApplicationError) as refused:
                self.pay(url, "k1", amount_cents=99)
            assert refused.value.type == "Http422"
            assert refused.value.non_retryable

    def test_refuses_a_payment_without_a_key(self, ledger: Ledger) -> None:
        with (
            serving(PaymentProvider(ledger, seed=1).make_server()) as url,
            pytest.raises(ApplicationError, match="Idempotency-Key"),
        ):
            post_json(f"{url}/payments", PAYMENT, timeout=5)

    def test_stats_give_the_books(self, ledger: Ledger) -> None:
        with serving(PaymentProvider(ledger, seed=1, drop_share=0, failure_share=0).make_server()) as url:
            self.pay(url, "k1")
            self.pay(url, "k1")
            with urllib.request.urlopen(f"{url}/stats", timeout=5) as response:
                stats = json.load(response)
        assert (stats["requests"], stats["payment_count"], stats["repeat_count"]) == (2, 1, 1)


class TestFraudService:
    def test_score_is_a_function_of_the_claim(self) -> None:
        scores = [fraud_score(f"claim-{number}") for number in range(1000)]
        assert scores == [fraud_score(f"claim-{number}") for number in range(1000)]
        assert all(0 <= score <= 1 for score in scores)
        assert 150 < sum(score > 0.8 for score in scores) < 250

    def test_answers_with_the_score(self) -> None:
        service = FraudService(seed=1, timeout_share=0, failure_share=0)
        with serving(service.make_server()) as url:
            assert post_json(f"{url}/score", {"claim_id": "claim-7"}, timeout=5) == {"score": fraud_score("claim-7")}

    def test_fails_now_and_then(self) -> None:
        service = FraudService(seed=1, timeout_share=0, failure_share=1)
        with serving(service.make_server()) as url, pytest.raises(OSError, match="500"):
            post_json(f"{url}/score", {"claim_id": "claim-7"}, timeout=5)

    def test_hangs_now_and_then(self) -> None:
        service = FraudService(seed=1, timeout_share=1, hang_seconds=0.5)
        with serving(service.make_server()) as url, pytest.raises(TimeoutError):
            post_json(f"{url}/score", {"claim_id": "claim-7"}, timeout=0.1)
