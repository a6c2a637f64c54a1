"""What several pages share: tables in Markdown, and where results come from."""

from collections.abc import Mapping, Sequence
from typing import Any


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1) -> str:
    """A table; all columns but the first `text` are right-aligned."""
    lines = [titles, ["---"] * text + ["---:"] * (len(titles) - text), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def made_on(facts: Mapping[str, str], rows: Sequence[Mapping[str, Any]] = ()) -> str:
    """GPU, versions and commit, as far as a result file has them; `rows` may be of other commits."""
    device = facts["device"].partition("(")[2].rstrip(")") or facts["device"]  # 1 x cuda (NAME)
    versions = [f"{name} {facts[name]}" for name in ("torch", "timm") if facts.get(name)]
    commits = [facts.get("commit"), *(row.get(key) for row in rows for key in ("commit", "timed_at"))]
    found = list(dict.fromkeys(commit[:7] for commit in commits if commit))
    name = "commit" if len(found) == 1 else "commits"
    return ", ".join([device, *versions, *([f"{name} {', '.join(found)}"] if found else [])])


def commands_of(made: Mapping[str, Any]) -> str:
    """The commands that made the rows of a file, as code: those of earlier calls, then the last one."""
    earlier = (row["command"] for row in made["rows"] if "command" in row)
    return ", ".join(f"`{command}`" for command in dict.fromkeys([*earlier, command_of(made["versions"])]))


def command_of(facts: Mapping[str, str]) -> str:
    """The command that made a result file; its script may have moved from docs to tools since."""
    return facts["command"].replace("python docs/", "python tools/")
