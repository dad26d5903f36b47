"""The drawing of a flow as text for Mermaid, which GitHub and many wikis show as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dibs.cli.flow_graph import choose_groups
from dibs.cli.flow_texts import (
    NOT_COMPLETED,
    OPEN,
    RUNNING,
    count_states,
    group_text,
    states_text,
)
from dibs.cli.output import escape
from dibs.flow.groups import Group
from dibs.flow.stored_flow import FlowStatus

#: The class of a box and its style.
STYLES: Final = {
    "completed": "fill:#d3f9d8,stroke:#2b8a3e,color:#000",
    "failed": "fill:#ffe3e3,stroke:#c92a2a,color:#000",
    "running": "fill:#fff3bf,stroke:#e67700,color:#000",
    "open": "fill:#f8f9fa,stroke:#868e96,color:#000",
    "skipped": "fill:#f8f9fa,stroke:#868e96,color:#868e96,stroke-dasharray:4",
}
#: Characters that end a text of Mermaid, or begin HTML in it.
_ENTITIES: Final = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;"})


def mermaid_lines(status: FlowStatus) -> Iterator[str]:
    """Yield the lines of a flowchart. An edge whose failure is ignored is dotted."""
    groups = choose_groups(status.nodes)
    yield "flowchart TD"
    for index, group in enumerate(groups):
        yield f'    n{index}["{_quote(group_text(status, group))}<br>{_states(status, group)}"]'
    for index, group in enumerate(groups):
        yield from (f"    n{parent} --> n{index}" for parent in sorted(group.parents))
        yield from (f"    n{parent} -.-> n{index}" for parent in sorted(group.ignored - group.parents))
    yield from (f"    classDef {name} {style}" for name, style in STYLES.items())
    for name in STYLES:
        members = [f"n{index}" for index, group in enumerate(groups) if _style(status, group) == name]
        if members:
            yield f"    class {','.join(members)} {name}"


def _quote(text: str) -> str:
    return escape(text).translate(_ENTITIES)


def _counts(status: FlowStatus, group: Group) -> dict[str, int]:
    return count_states(status.nodes[number] for number in group.numbers)


def _states(status: FlowStatus, group: Group) -> str:
    return states_text(_counts(status, group))


def _style(status: FlowStatus, group: Group) -> str:
    counts = _counts(status, group)
    for name, states in (("failed", NOT_COMPLETED), ("running", RUNNING), ("open", OPEN)):
        if any(state in counts for state in states):
            return name
    return "completed" if "completed" in counts else "skipped"
