"""Connections cut after the n-th byte of a request, and of a reply."""

from __future__ import annotations

import time

from dibs_conformance.crashes.proxy import Proxy, Way
from dibs_conformance.crashes.scenes import SCENES, fewest
from dibs_conformance.crashes.scenes import Way as Kind
from dibs_conformance.crashes.survivor import Witness, witness
from dibs_conformance.report import Findings
from dibs_conformance.report.findings import merge
from dibs_conformance.target import LevelPlan

#: A scene, and after how many bytes.
Point = tuple[str, int]

REQUEST_CUT = (
    "a cut request tells the truth",
    "What lost its connection at any byte sent happened, did not, or is unknown: as it says.",
    "request cut",
)
REPLY_CUT = (
    "a cut reply tells the truth",
    "What lost its connection at any byte of the reply happened, did not, or is unknown: as it says.",
    "reply cut",
)


class Cutting:
    """A client behind a proxy, and a witness beside it."""

    def __init__(self, seen: Witness, client: Witness, proxy: Proxy) -> None:
        self._seen, self._client, self._proxy = seen, client, proxy

    def sizes(self, way: Kind[Point]) -> dict[str, dict[Way, int]]:
        """How many bytes each scene sends and gets."""
        found: dict[str, dict[Way, int]] = {}
        for name in SCENES:
            self._play(way, name, None, 0)
            found[name] = dict(self._proxy.bytes)
        return found

    def cut(self, way: Kind[Point], side: Way, point: Point) -> None:
        self._play(way, point[0], side, point[1])
        if self._proxy.cuts:
            way.count()

    def _play(self, way: Kind[Point], name: str, side: Way | None, after: int) -> None:
        history = way.history()
        order = history.begin(SCENES[name])
        self._proxy.arm(side, after)
        calls = self._client.does(order, 60) or self._client.rest()
        history.add(calls)
        history.end()
        way.judge(history)


def cut_off(plan: LevelPlan, until: float) -> Findings:
    """Cut requests, then replies."""
    url, now = plan.locations.new(), time.monotonic()
    with (
        witness(plan.locations, url) as seen,
        Proxy.before(url) as proxy,
        witness(plan.locations, proxy.through(url)) as client,
    ):
        requests: Kind[Point] = Kind(*REQUEST_CUT, seen, "asked", plan.seed, fewest=fewest(plan))
        replies: Kind[Point] = Kind(*REPLY_CUT, seen, "told", plan.seed, fewest=fewest(plan))
        cutting = Cutting(seen, client, proxy)
        sizes = cutting.sizes(requests)
        sent = [(name, n) for name, size in sizes.items() for n in range(1, size["request"] + 1)]
        got = [(name, n) for name, size in sizes.items() for n in range(1, size["reply"] + 1)]
        requests.try_all(sent, lambda point: cutting.cut(requests, "request", point), (now + until) / 2)
        if requests.failure is None:
            replies.try_all(got, lambda point: cutting.cut(replies, "reply", point), until)
        return merge(requests.findings(), replies.findings())
