"""Translation of an ``execute`` message into an order for the broker, with every limit and size checked."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from tidebox.api.fathom.requests import MAX_CODE_BYTES, MAX_STDIN_BYTES, MessageRefused, parse_env, shown
from tidebox.model.box import BoxSpec
from tidebox.model.execution_request import ExecutionRequest
from tidebox.model.languages import BUILT_IN, Languages
from tidebox.model.launch import plan_code
from tidebox.model.limits import MIB, RANGES, Limits
from tidebox.protocols.fathom import Execute

DEFAULT_CPU_SHARES = 512
DEFAULT_OUTPUT_BYTES = MIB


@dataclass(frozen=True, slots=True)
class LimitRange:
    """The range of whole numbers that a limit may have, in the unit of its field."""

    low: int
    high: int


def _bounds(name: str, unit: float) -> LimitRange:
    allowed = RANGES[name]
    return LimitRange(round(allowed.low / unit), round(allowed.high / unit))


BOUNDS = {
    "timeout_ms": _bounds("timeout", 0.001),
    "memory_mb": _bounds("memory", MIB),
    "cpu_shares": _bounds("cpu_shares", 1),
    "max_output_bytes": _bounds("output", 1),
}


def make_order(
    request: Execute,
    languages: Mapping[str, str],
    known: Languages = BUILT_IN,
    compile_timeout: float = Limits().compile_timeout,
) -> ExecutionRequest:
    """Make the order for a request; raises MessageRefused. ``languages`` are those that have an image, with it."""
    if request.language not in languages:
        available = ", ".join(language.name for language in known if language.name in languages)
        message = f"Language {shown(request.language)} is not available in this sandbox; available: {available}"
        raise MessageRefused("LANGUAGE_NOT_SUPPORTED", message, request.id)
    code = _bytes("code", request.code, MAX_CODE_BYTES, request.id)
    stdin = None if request.stdin is None else _bytes("stdin", request.stdin, MAX_STDIN_BYTES, request.id)
    spec = _box(request, languages[request.language], compile_timeout)
    env = parse_env(request)
    launch = plan_code(request.language, code, env=env, memory=spec.limits.memory, languages=known)
    return ExecutionRequest(launch=launch, spec=spec, stdin=stdin)


def _box(request: Execute, image: str, compile_timeout: float) -> BoxSpec:
    asked = request.limits
    shares = DEFAULT_CPU_SHARES if asked.cpu_shares is None else asked.cpu_shares
    output = DEFAULT_OUTPUT_BYTES if asked.max_output_bytes is None else asked.max_output_bytes
    values = (
        ("timeout_ms", asked.timeout_ms),
        ("memory_mb", asked.memory_mb),
        ("cpu_shares", shares),
        ("max_output_bytes", output),
    )
    for name, value in values:
        bounds = BOUNDS[name]
        if not bounds.low <= value <= bounds.high:
            message = f"limits.{name}: must be between {bounds.low} and {bounds.high}, not {shown(value)}"
            raise MessageRefused("INVALID_REQUEST", message, request.id)
    return _box_with(image, asked.timeout_ms, asked.memory_mb, shares, output, compile_timeout)


# Most clients ask for the same limits again and again.
@functools.lru_cache(maxsize=256)
def _box_with(
    image: str, timeout_ms: int, memory_mb: int, cpu_shares: int, output: int, compile_timeout: float
) -> BoxSpec:
    limits = Limits(
        timeout=timeout_ms / 1000,
        memory=memory_mb * MIB,
        cpu_shares=cpu_shares,
        output=output,
        compile_timeout=compile_timeout,
    )
    return BoxSpec(image=image, limits=limits)


def _bytes(field: str, text: str, limit: int, id: str) -> bytes:
    data = text.encode()
    if len(data) > limit:
        raise MessageRefused("INVALID_REQUEST", f"{field}: longer than {limit} bytes", id)
    return data
