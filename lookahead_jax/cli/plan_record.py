"""What `lookahead-jax plan` tells programs: one JSON object."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lookahead_jax.cli.plan import ALPHAS, CAVEAT, HIT_RATES, Estimate, Progress, estimate
from lookahead_jax.cost import row_ledger
from lookahead_jax.planning import all_meshes, remedies
from lookahead_jax.roofline import Call, free_rows, peak_flops


def plan_record(
    plan: Estimate, progress: Progress | None, points: Sequence[Estimate]
) -> dict[str, Any]:
    """The one JSON object of `--json`: bytes, FLOPs and seconds, per device."""
    deployment = plan.deployment
    config, form, tpu = deployment.config, deployment.form, deployment.tpu
    cases = [Progress(alpha, rate) for rate in HIT_RATES for alpha in ALPHAS]
    record: dict[str, Any] = {
        "note": CAVEAT,
        "model": deployment.shape.name,
        "parameters": deployment.shape.weights.count,
        "dtype": form.dtype,
        "int8": form.int8,
        "batch": deployment.batch_size,
        "context": deployment.context,
        "tpu": tpu.name,
        "chips": tpu.num_chips,
        "devices": tpu.num_devices,
        "chip": dataclasses.asdict(tpu.chip),
        "mesh": dataclasses.asdict(deployment.mesh),
        **_config_record(plan),
        "rows": {
            **dataclasses.asdict(row_ledger(config)),
            "total": config.num_rows,
            "on_a_device": deployment.round_rows,
            "logits_on_a_device": deployment.round_logit_rows,
            "free": free_rows(deployment),
        },
        "memory": {
            **dataclasses.asdict(plan.memory),
            "total": plan.memory.total,
            "fits": plan.memory.fits,
        },
        "peak_flops": peak_flops(deployment),
        "step": _call_record(plan.step),
        "round": _call_record(plan.round),
        "predictions": [_prediction(plan, x) for x in ([progress] if progress else cases)],
        "meshes": [_way_record(estimate(way)) for way in all_meshes(deployment)],
    }
    if not plan.memory.fits:
        record["remedies"] = [
            {"options": remedy.change, **_way_record(estimate(remedy.deployment))}
            for remedy in remedies(deployment)
        ]
    if points:
        record["grid"] = [
            {
                **_config_record(point),
                "rows": point.deployment.config.num_rows,
                "rows_on_a_device": point.round.rows,
                "fits": point.memory.fits,
                **({} if progress is None else _prediction(point, progress)),
            }
            for point in points
        ]
    return record


def _config_record(plan: Estimate) -> dict[str, Any]:
    config = plan.deployment.config
    return {
        "window_size": config.window_size,
        "ngram_size": config.ngram_size,
        "guess_set_size": config.guess_set_size,
        "round_over_step": plan.ratio,
    }


def _call_record(call: Call) -> dict[str, Any]:
    return {
        "rows": call.rows,
        "flops": call.flops,
        "bytes": call.bytes,
        "exchanged": call.exchanged,
        "exchange_seconds": call.exchange_seconds,
        "seconds": call.seconds,
        "parts": [dataclasses.asdict(part) for part in call.parts],
    }


def _prediction(plan: Estimate, progress: Progress) -> dict[str, Any]:
    tokens = progress.tokens(plan.deployment.config)
    record: dict[str, Any] = (
        {}
        if progress.acceptance is None
        else {
            "acceptance": progress.acceptance,
            "hit_rate": progress.hit_rate,
        }
    )
    return {
        **record,
        "tokens_per_round": tokens,
        "token_seconds": plan.round.seconds / tokens,
        "speed_up": plan.speed_up(progress),
    }


def _way_record(plan: Estimate) -> dict[str, Any]:
    return {
        "mesh": dataclasses.asdict(plan.deployment.mesh),
        "memory": plan.memory.total,
        "fits": plan.memory.fits,
        "step_seconds": plan.step.seconds,
        "round_seconds": plan.round.seconds,
    }
