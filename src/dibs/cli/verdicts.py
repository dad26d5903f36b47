"""One answer for each id, told to a person or a program."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.cli.output import Code, say, write_json


def tell_each(
    queue: str, ids: Sequence[str], answers: Sequence[str], *, good: tuple[str, ...], json: bool
) -> Code:
    """Print what became of each id; REFUSED unless every answer is a good one."""
    if json:
        jobs = [{"id": id, "answer": answer} for id, answer in zip(ids, answers, strict=True)]
        write_json({"queue": queue, "jobs": jobs})
    else:
        width = max(map(len, answers), default=0)
        say(*(f"{answer:<{width}}  {queue}/{id}" for id, answer in zip(ids, answers, strict=True)))
    return Code.DONE if all(answer in good for answer in answers) else Code.REFUSED
