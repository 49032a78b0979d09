"""A module that has one workflow, of which there are no runs."""

from __future__ import annotations

from clew import workflow


@workflow.defn
class Lonely:
    @workflow.run
    async def run(self) -> None: ...
