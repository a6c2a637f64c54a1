"""A student next to its teacher: one forward pass gives the loss of a batch."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.models.attention_error import AttentionCalls, Call, RelativeError, attention_modules, relative_error
from sightline.models.base import LoadResult, VisionModel
from sightline.tasks.base import blocks_of
from sightline.tasks.linearize.config import Linearize


class Teacher:
    """A model that does not learn, and what its attention is called with. Copies share it.

    Args:
        model: a sightline model with softmax.
    """

    def __init__(self, model: VisionModel) -> None:
        self.model = model.eval().requires_grad_(False)
        self.calls = AttentionCalls(model)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Teacher":
        return self


class Distiller(nn.Module):
    """images -> loss. Its weights, as it saves and loads them, are those of the student.

    Args:
        student, teacher: sightline models that differ in their attention.
        loss: stage and weights of the losses.
        replaced: the blocks whose attention differs.
    """

    def __init__(self, student: VisionModel, teacher: Teacher, loss: Linearize, replaced: list[int]) -> None:
        super().__init__()
        self.student, self.teacher, self.loss, self.replaced = student, teacher, loss, replaced
        self.attention = attention_modules(student)  # a list, so that they are not registered twice
        self.error = RelativeError()
        if loss.stage == 1:
            learns = {id(p) for i in replaced for p in self.attention[i].parameters()}
            for parameter in student.parameters():
                parameter.requires_grad_(id(parameter) in learns)
        elif not loss.logits:  # processes wait for the gradients of all parameters that learn
            for name, parameter in student.named_parameters():
                parameter.requires_grad_(not name.startswith(("head.", "fc_norm.", "attn_pool.")))

    @property
    def repeated(self) -> list[nn.Module]:
        """The parts of a pass that are alike and many: blocks, attention modules, and the error of tokens."""
        loss, student = self.loss, self.student
        parts = [*blocks_of(self.teacher.model), self.error]
        parts += self.attention if loss.stage == 1 or loss.blocks else []
        return [*parts, *blocks_of(student)] if loss.stage == 2 else parts

    def forward(self, images: Tensor) -> Tensor:
        """The loss of a batch (B, C, H, W)."""
        loss, student, teacher = self.loss, self.student, self.teacher.model
        layers = range(len(getattr(teacher, teacher.body)))
        hidden = layers if loss.stage == 2 and loss.hidden else ()
        with torch.no_grad():
            final, middle = teacher.run_layers(self._seen(images), len(layers), hidden)
            tokens = teacher._finish(final)
            calls = self.teacher.calls.take()
        if loss.stage == 1:
            return self._attention(calls)
        found, passed = student.run_layers(images, len(layers), hidden)
        features = student._finish(found)
        parts = []
        if loss.tokens:
            parts.append(loss.tokens * self.error(features, tokens))
        if loss.logits:
            with torch.no_grad():
                wanted = teacher.forward_head(tokens)
            parts.append(loss.logits * divergence(student.forward_head(features), wanted, loss.temperature))
        if hidden:
            errors = [self.error(passed[i][0], middle[i][0]) for i in hidden]
            parts.append(loss.hidden * torch.stack(errors).mean())
        if loss.blocks:
            parts.append(loss.blocks * self._attention(calls))
        return torch.stack(parts).sum()

    def _seen(self, images: Tensor) -> Tensor:
        """The images as the teacher sees them."""
        size = self.loss.teacher_size if self.loss.stage == 2 else None
        return images if size is None else F.interpolate(images, (size, size), mode="bicubic", antialias=True)

    def _attention(self, calls: list[Call]) -> Tensor:
        """The sum of the errors of the replaced blocks, each with the teacher's input."""
        errors = []
        for i in self.replaced:
            args, kwargs, out = calls[i]
            errors.append(self.error(self.attention[i](*args, **kwargs), out))
        return torch.stack(errors).sum()

    @torch.no_grad()
    def compare(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs of student and teacher (B, classes), features without a classifier, and the error of every block."""
        wanted = self.teacher.model(images).float()
        calls = self.teacher.calls.take()  # of images as the student sees them
        if (seen := self._seen(images)) is not images:
            wanted = self.teacher.model(seen).float()
            self.teacher.calls.take()
        pairs = zip(self.attention, calls, strict=True)
        errors = [relative_error(module(*args, **kwargs), out) for module, (args, kwargs, out) in pairs]
        return self.student(images).float(), wanted, torch.stack(errors)

    def train(self, mode: bool = True) -> "Distiller":
        super().train(mode)
        self.student.train(mode and self.loss.stage == 2)  # no stochastic depth where outputs are compared one by one
        return self

    def no_weight_decay(self) -> set[str]:
        return {f"student.{name}" for name in self.student.no_weight_decay()}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.student.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> LoadResult:
        return self.student.load_state_dict(state_dict, strict, assign)


def divergence(found: Tensor, wanted: Tensor, temperature: float = 1.0) -> Tensor:
    """The mean Kullback-Leibler divergence of classes, from logits (B, classes), times the squared temperature."""
    return temperature**2 * divergences(found.float() / temperature, wanted.float() / temperature).mean()


def divergences(found: Tensor, wanted: Tensor) -> Tensor:
    """The Kullback-Leibler divergence of the classes of each image, (B,), from logits (B, classes)."""
    return F.kl_div(found.log_softmax(-1), wanted.log_softmax(-1), reduction="none", log_target=True).sum(-1)
