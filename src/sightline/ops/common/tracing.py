"""Kernels in the graphs of torch's compiler: analyzed once, and launched like the compiler's own.

torch reads the code of a kernel at every launch that it traces, several times, to see which tensors the kernel writes,
which takes up to half a second each time. The answer depends on types and constants alone, so it is kept. And compiled
code launches kernels that are not its own through Triton, which inspects every argument, unless an option of torch says
otherwise. The function and the option are private to torch; where they have other names, torch works as it always does.
"""

import os
from collections.abc import Callable, Hashable, Mapping
from copy import deepcopy
from typing import Any

import torch
import torch._higher_order_ops.triton_kernel_wrap as wrap
import torch._inductor.config as inductor

NAMES = ("identify_accessed_tensors", "identify_mutated_tensors")  # in newer and in older releases of torch
DIRECT = "static_launch_user_defined_triton_kernels"  # an option of Inductor
PACKAGE = __name__.partition(".")[0]


def launch_directly() -> None:
    """Let compiled code launch all kernels in the way of its own, which takes less of the host's time.

    Processes that compile for this one read the option from a variable of the environment, which is left as it is if it
    is set already.
    """
    if hasattr(inductor, DIRECT):
        os.environ.setdefault(f"TORCHINDUCTOR_{DIRECT.upper()}", "1")
        setattr(inductor, DIRECT, True)


def remember_accesses() -> None:
    """Let torch analyze every kernel of this package once per signature."""
    for name in NAMES:
        analyze = getattr(wrap, name, None)
        if callable(analyze) and not hasattr(analyze, "forget"):
            setattr(wrap, name, remembering(analyze))


def remembering(analyze: Callable[..., Any]) -> Callable[..., Any]:
    """`analyze(kernel, kwargs, ...)`, called once for kernels of this package with arguments of the same kinds."""
    known: dict[Hashable, Any] = {}

    def run(kernel: Any, kwargs: Mapping[str, object], *rest: Any, **options: Any) -> Any:
        inner: Any = kernel.fn if hasattr(kernel, "configs") else kernel  # torch adds warps and stages
        module = getattr(getattr(inner, "fn", None), "__module__", "")
        if module.partition(".")[0] != PACKAGE or any(rest) or options:
            return analyze(kernel, kwargs, *rest, **options)
        constants = {inner.arg_names[index] for index in inner.constexprs}
        key = (inner, *((name, _kind(value, name in constants)) for name, value in kwargs.items()))
        if key not in known:
            known[key] = analyze(kernel, kwargs, *rest)
        return deepcopy(known[key])

    run.forget = known.clear  # type: ignore[attr-defined]
    return run


def _kind(value: object, constant: bool) -> Hashable:
    """What the code of a kernel depends on: the value of a constant, the dtype of a tensor, the type of a number."""
    if constant or value is None:
        return type(value), value if isinstance(value, Hashable) else repr(value)
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, int | float):
        return type(value).__name__
    get_dtype = getattr(value, "get_dtype", None)  # of Inductor's tensors; the rest are symbolic numbers
    return "number" if get_dtype is None else get_dtype()
