"""Tests that cut the connection to the server after the n-th byte of a request or of a reply."""

from __future__ import annotations

import time

from attrs import frozen

from dibs_conformance.crashes.proxy import Direction, Proxy
from dibs_conformance.crashes.scenes import SCENES, FaultCampaign, min_points
from dibs_conformance.crashes.survivor import ThreadSurvivor, thread_survivor
from dibs_conformance.report import Findings
from dibs_conformance.report.findings import merge_findings
from dibs_conformance.target import LevelPlan

#: The name of a scene, and the number of bytes before the cut.
CutPoint = tuple[str, int]

REQUEST_CUT = (
    "a cut request tells the truth",
    "After a cut at any byte of a request, the call reports truthfully: done, refused or unknown.",
    "request cut",
)
REPLY_CUT = (
    "a cut reply tells the truth",
    "After a cut at any byte of a reply, the call reports truthfully: done, refused or unknown.",
    "reply cut",
)


@frozen
class ConnectionCutter:
    """The runner of scenes on a client behind a proxy that cuts the connection."""

    _client: ThreadSurvivor
    _proxy: Proxy

    def sizes(self, campaign: FaultCampaign[CutPoint]) -> dict[str, dict[Direction, int]]:
        """Return the number of bytes that each scene sends and receives."""
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
    """Cut connections within requests in the first half of the time, and within replies in the second."""
    url, now = plan.locations.new(), time.monotonic()
    with (
        thread_survivor(plan.locations, url) as survivor,
        Proxy.for_url(url) as proxy,
        thread_survivor(plan.locations, proxy.proxied_url(url)) as client,
    ):
        requests: FaultCampaign[CutPoint] = FaultCampaign(
            *REQUEST_CUT, survivor, "request", plan.seed, min_points=min_points(plan)
        )
        replies: FaultCampaign[CutPoint] = FaultCampaign(
            *REPLY_CUT, survivor, "reply", plan.seed, min_points=min_points(plan)
        )
        cutter = ConnectionCutter(client, proxy)
        sizes = cutter.sizes(requests)
        sent = [(name, n) for name, size in sizes.items() for n in range(1, size["request"] + 1)]
        got = [(name, n) for name, size in sizes.items() for n in range(1, size["reply"] + 1)]
        requests.run(sent, lambda point: cutter.cut(requests, "request", point), (now + until) / 2)
        if requests.failure is None:
            replies.run(got, lambda point: cutter.cut(replies, "reply", point), until)
        return merge_findings(requests.findings(), replies.findings())
