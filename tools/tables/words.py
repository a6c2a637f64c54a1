"""Words that several pages share."""

from collections.abc import Mapping
from typing import Any


def made_on(facts: Mapping[str, Any]) -> str:
    """Card, versions and commit, as far as a result file has them."""
    device = facts["device"].partition("(")[2].rstrip(")") or facts["device"]  # 1 x cuda (NAME)
    versions = [f"{name} {facts[name]}" for name in ("torch", "timm") if facts.get(name)]
    return ", ".join([device, *versions, *([f"commit {facts['commit'][:7]}"] if facts.get("commit") else [])])
