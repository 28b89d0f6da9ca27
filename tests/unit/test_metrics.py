"""What the server counts, by the runtime that it happened on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.memory_store import DictStore
from tests.unit.stage import ADA, Stage, ignore, make_order
from tidebox.api.metrics import Levels, ServerMetrics
from tidebox.broker.audit.audit_log import Audit
from tidebox.broker.broker import Broker
from tidebox.broker.runs.run_plan import RunPlan
from tidebox.model.box import BoxSpec
from tidebox.model.launch import plan_code
from tidebox.model.run import RunFacts


def counted(metrics: ServerMetrics, name: str) -> dict[str, float]:
    """A counter by its runtime."""
    return {sample["labels"]["runtime"]: sample["value"] for sample in metrics.series().get(name, [])}


async def test_a_run_counts_for_the_runtime_that_it_used(tmp_path: Path) -> None:
    stage = Stage()
    metrics = ServerMetrics("native", lambda: Levels(active=0, queued=0, cells=0, boxes=0))
    broker = Broker(runner=stage, store=DictStore(), audit=Audit(tmp_path), metrics=metrics)
    await broker.start()
    number = 0
    for runtime, count in (("native", 1), ("other", 2)):
        facts = RunFacts(runtime=runtime, base_image="host", spec_version="1.0", policy_hash="f00d")
        work = RunPlan(launch=plan_code("python", ""), spec=BoxSpec(runtime=runtime))
        for _ in range(count):
            await broker.runs.submit(ADA, facts, work)
            play = await stage.play(number)
            await play.say(b"four")
            play.finish()
            await broker.runs.idle()
            number += 1
    # Of the other door: the default one where none is named.
    for order in (make_order(), replace(make_order(), spec=BoxSpec(runtime="other"))):
        execution = broker.execute(ADA, order, ignore)
        (await stage.play(number)).finish()
        await execution.ending()
        number += 1
    await broker.close()
    for name in ("sandbox_runs_started_total", "sandbox_runs_completed_total", "sandbox_queue_wait_seconds_count"):
        assert counted(metrics, name) == {"native": 2, "other": 3}, name
    assert counted(metrics, "sandbox_run_start_latency_seconds_count") == {"native": 1, "other": 2}
    assert counted(metrics, "sandbox_log_bytes_total") == {"native": 4, "other": 8}


def test_how_programs_of_images_start_is_told() -> None:
    starts = {("host", "python"): "forked", ("data", "python"): "parked"}
    metrics = ServerMetrics("native", lambda: Levels(active=0, queued=0, cells=0, boxes=0, starts=starts))
    told = [sample["labels"] for sample in metrics.series()["sandbox_image_start"]]
    assert told == [
        {"image": "host", "interpreter": "python", "start": "forked"},
        {"image": "data", "interpreter": "python", "start": "parked"},
    ]
