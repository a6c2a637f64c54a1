"""What torch.compile checks before every call of a compiled model: one version per dictionary, not every attribute.

It can skip what it knows of a module while no dictionary of it or below it has changed. A property, or a method of
`super()`, that a traced `forward` uses takes that away from the module and from all that hold it.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._C._dynamo.guards import DictGuardManager
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from sightline import backend
from tests.models.tiny import fresh, image


def managers(top: Any) -> Iterator[Any]:
    """A manager of guards and those below it."""
    yield top
    pairs = top.get_key_value_managers().values() if isinstance(top, DictGuardManager) else [top.get_child_managers()]
    for below in pairs:
        for each in below:
            if each is not None:
                yield from managers(each)


@pytest.mark.parametrize("family", ["deit", "pvt", "swin", "cswin", "soft"])  # with every kind of attention and block
def test_no_module_is_checked_attribute_by_attribute(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "fused_stem", lambda x: True)  # as on a GPU
    check_guards(family)


@pytest.mark.parametrize("family", ["deit", "soft"])  # with norms before and after
def test_nor_where_sums_are_joined_with_norms(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In compiled training on a GPU, where blocks are taken apart."""
    monkeypatch.setattr(backend, "fused_stem", lambda x: True)
    monkeypatch.setattr(backend, "fused_norm", lambda x: torch.compiler.is_dynamo_compiling())
    check_guards(family)


def check_guards(family: str) -> None:
    torch._dynamo.reset()
    model = fresh(family)
    recursive = torch._dynamo.config.patch(use_recursive_dict_tags_for_guards=True)
    with recursive, torch.autocast("cpu", torch.bfloat16):
        torch.compile(model, backend="eager", fullgraph=True)(image())
    (entry,) = _debug_get_cache_entry_list(type(model).forward.__code__)
    checked = [each for each in managers(entry.guard_manager.root) if each.get_source().startswith("L['self']")]
    assert len(checked) > len(list(model.modules()))
    assert [each.get_source() for each in checked if not each.is_tag_safe()] == []
