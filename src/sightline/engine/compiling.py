"""Whether and how the model of a run is compiled, and what happens if that fails.

`choose` is the one table of decisions. A compiled model trains with torch.compile, with CUDA graphs where all batches
have the same shapes. Evaluation between epochs is eager: it has too few batches to pay for compiling once more.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from sightline.tasks.base import Shapes
from sightline.tasks.config import Model
from sightline.util.errors import RunError

GRAPHS = ("reduce-overhead", "max-autotune")  # modes with CUDA graphs
DYNAMIC: dict[Shapes, bool | None] = {"fixed": False, "lengths": True, "any": None}  # of torch.compile
WARM = 3  # updates until a CUDA graph is replayed: one runs, one is recorded, one is the first replay
OFF = "model.compile=false turns it off"
T = TypeVar("T")


class Choice(NamedTuple):
    """How a model runs: `mode` of torch.compile or None for eager mode, why, whether block by block, and whether whole
    updates are then recorded as CUDA graphs."""

    mode: str | None
    why: str
    blocks: bool = False
    recorded: bool = False

    @property
    def graphs(self) -> bool:
        return self.mode in GRAPHS

    @property
    def line(self) -> str:
        """What to print when a run starts."""
        if self.mode is None and self.recorded:
            return f"the model runs in eager mode, with CUDA graphs {self.why}; {OFF}"
        if self.mode is None:
            return f"the model runs in eager mode: {self.why}"
        how = f"torch.compile with{'' if self.graphs or self.recorded else 'out'} CUDA graphs"
        return f"the model is compiled in the first updates: {how}, {self.why}; {OFF}"


def choose(
    model: Model, device: str, shapes: Shapes = "fixed", processes: int = 1, sharded: bool = False,
    recordable: bool = True,
) -> Choice:  # fmt: skip
    """How the model of a run is compiled.

    Args:
        model: has the keys `compile` and `compile_mode`; a given mode is used whenever the model is compiled.
        device: type of the device.
        shapes: of the training batches.
        processes: of the run.
        sharded: whether the model is sharded over them.
        recordable: whether updates can be recorded: those of several micro-batches and those in fp16 cannot.

    | model.compile | device | processes | shapes | result |
    |---|---|---|---|---|
    | false | all | all | all | eager |
    | auto, blocks, graphs | not CUDA | all | all | eager |
    | graphs | CUDA | one | fixed | eager, updates recorded if they can be; else as auto |
    | blocks | CUDA | all | fixed | torch.compile of each kind of block, updates of one process recorded; else as auto |
    | auto | CUDA | all | any (detection) | eager: new sizes would be compiled again and again |
    | auto | CUDA | sharded (FSDP) | all | eager |
    | auto, true | CUDA | one | fixed | torch.compile with CUDA graphs |
    | auto, true | CUDA | one | lengths | torch.compile, once for all lengths |
    | auto, true | CUDA | several | fixed, lengths | torch.compile |
    | true | all others | | | torch.compile |
    """
    asked, mode = model.compile, model.compile_mode
    if asked is False:
        return Choice(None, "as requested")
    if asked is not True and device != "cuda":
        return Choice(None, f"compiling does not pay on {device}")
    if asked is not True and shapes == "any":
        return Choice(None, "images of many sizes would be compiled again and again")
    if asked is not True and sharded:
        return Choice(None, "it is sharded over processes")
    if asked == "graphs" and shapes == "fixed" and processes == 1:
        if not recordable:
            return Choice(None, "updates of several micro-batches or in fp16 cannot be recorded")
        return Choice(None, "since all batches have one shape", recorded=True)
    if asked == "blocks" and shapes == "fixed" and not sharded:
        mode = "default" if mode in (None, *GRAPHS) else mode
        recorded = device == "cuda" and processes == 1 and recordable
        return Choice(mode, "one block for all of its kind", True, recorded)
    if mode is not None:
        return Choice(mode, f"mode {mode} as requested")
    if device == "cuda" and shapes == "fixed" and processes == 1 and not sharded:
        return Choice("reduce-overhead", "since all batches have one shape")
    if processes > 1:
        return Choice("default", f"in {processes} processes")
    return Choice("default", f"on {device}" if shapes == "fixed" else "since shapes vary")


class CompiledModel:
    """A model that is compiled in place, until compiling or the compiled code fails.

    Args:
        model: of the run.
        parts: what of it is compiled: all of it, or its blocks.
        choice: how.
        shapes: of the training batches.
        line: prints a line.
    """

    def __init__(
        self, model: nn.Module, parts: Sequence[nn.Module], choice: Choice, shapes: Shapes, line: Callable[[str], None]
    ) -> None:
        self.model, self.parts, self.choice, self.line = model, parts, choice, line
        self.active = choice.mode is not None
        self.failed = False
        self._updates = 0
        self._buffers = list(model.buffers())  # of batch norm: a forward pass changes them
        if self.active:
            try:
                for part in parts:
                    part.compile(mode=choice.mode, dynamic=DYNAMIC[shapes])
            except Exception as error:
                self._give_up(_reason(error))

    @property
    def graphs(self) -> bool:
        """Whether CUDA graphs own the memory of outputs and gradients, until the next forward pass."""
        return self.active and self.choice.graphs

    def attempt(self, work: Callable[[], T]) -> T:
        """`work()`: a forward and a backward pass. If it fails while compiled, it is done again in eager mode.

        The second attempt finds the buffers and gradients of the model as the first did; `work` seeds what is random.
        """
        self._updates += 1
        if not self.active:
            return work()
        before = [buffer.clone() for buffer in self._buffers]
        depth = _autocast_depth()
        try:
            return work()
        except RunError:
            raise
        except Exception as error:
            reason = _reason(error)  # the error itself would keep the tensors of the failed attempt
        self._give_up(reason)
        _leave_autocast(depth)
        with torch.no_grad():
            for buffer, value in zip(self._buffers, before, strict=True):
                buffer.copy_(value)
        self.model.zero_grad()
        return work()

    def warming(self, steps: int) -> bool:
        """Whether the last update took the time to compile or record; never in epochs of few `steps`."""
        return (self.active or self.choice.recorded) and self._updates <= WARM < steps

    def eager(self) -> AbstractContextManager[object]:
        """A context in which the model runs in eager mode."""
        return torch.compiler.set_stance("force_eager") if self.active else nullcontext()

    def close(self) -> None:
        """Free compiled code and CUDA graphs."""
        if self.active:
            self.active = False
            for part in self.parts:
                part._compiled_call_impl = None
            torch.compiler.reset()

    def _give_up(self, reason: str) -> None:
        self.failed = True
        self.close()
        self.line(f"compiling failed ({reason}); continuing in eager mode from the same update; {OFF}")


def _autocast_depth() -> int:
    """How many autocast contexts torch believes to be in."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _leave_autocast(depth: int) -> None:
    """Set back the depth, and forget the weights that autocast has cast.

    A compiler that fails within such a context can leave it twice, or never. Autocast forgets cast weights when it is
    back at depth 0; if it never is, every later pass uses the weights of the first.
    """
    while (now := _autocast_depth()) != depth:
        if now > depth:
            torch.autocast_decrement_nesting()
        else:
            torch.autocast_increment_nesting()
    torch.clear_autocast_cache()


def _reason(error: Exception) -> str:
    """The error of the compiler in one short line."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:200].rstrip(" :.")
