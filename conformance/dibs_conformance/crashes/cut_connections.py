"""Connections cut after the n-th byte of a request, and of a reply."""

from __future__ import annotations

import time

from dibs_conformance.crashes.proxy import Direction, Proxy
from dibs_conformance.crashes.scenes import SCENES, FaultCampaign, min_points
from dibs_conformance.crashes.survivor import ThreadSurvivor, thread_survivor
from dibs_conformance.report import Findings
from dibs_conformance.report.findings import merge
from dibs_conformance.target import LevelPlan

#: A scene, and after how many bytes.
CutPoint = tuple[str, int]

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


class ConnectionCutter:
    """A client behind a proxy, and a witness beside it."""

    def __init__(self, survivor: ThreadSurvivor, client: ThreadSurvivor, proxy: Proxy) -> None:
        self._survivor, self._client, self._proxy = survivor, client, proxy

    def sizes(self, campaign: FaultCampaign[CutPoint]) -> dict[str, dict[Direction, int]]:
        """How many bytes each scene sends and gets."""
        found: dict[str, dict[Direction, int]] = {}
        for name in SCENES:
            self._run_scene(campaign, name, None, 0)
            found[name] = dict(self._proxy.bytes)
        return found

    def cut(self, campaign: FaultCampaign[CutPoint], direction: Direction, point: CutPoint) -> None:
        self._run_scene(campaign, point[0], direction, point[1])
        if self._proxy.cuts:
            campaign.count_fault()

    def _run_scene(
        self, campaign: FaultCampaign[CutPoint], name: str, direction: Direction | None, after: int
    ) -> None:
        history = campaign.new_history()
        program = history.run_setup(SCENES[name])
        self._proxy.arm(direction, after)
        calls = self._client.run(program, 60) or self._client.wait_late()
        history.add(calls)
        history.finish()
        campaign.check(history)


def try_cut_connections(plan: LevelPlan, until: float) -> Findings:
    """Cut requests, then replies."""
    url, now = plan.locations.new(), time.monotonic()
    with (
        thread_survivor(plan.locations, url) as survivor,
        Proxy.for_url(url) as proxy,
        thread_survivor(plan.locations, proxy.proxied_url(url)) as client,
    ):
        requests: FaultCampaign[CutPoint] = FaultCampaign(
            *REQUEST_CUT, survivor, "asked", plan.seed, min_points=min_points(plan)
        )
        replies: FaultCampaign[CutPoint] = FaultCampaign(
            *REPLY_CUT, survivor, "told", plan.seed, min_points=min_points(plan)
        )
        cutter = ConnectionCutter(survivor, client, proxy)
        sizes = cutter.sizes(requests)
        sent = [(name, n) for name, size in sizes.items() for n in range(1, size["request"] + 1)]
        got = [(name, n) for name, size in sizes.items() for n in range(1, size["reply"] + 1)]
        requests.run(sent, lambda point: cutter.cut(requests, "request", point), (now + until) / 2)
        if requests.failure is None:
            replies.run(got, lambda point: cutter.cut(replies, "reply", point), until)
        return merge(requests.findings(), replies.findings())
