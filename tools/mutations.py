"""Small changes of SQL and Lua, found by patterns: what `tools/mutants` tries beside its own list.

A change is known by a short id, made of the file, the operator, the line as it is and how many
equal lines come before it. So the same changes are chosen however a file grows around them.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

CHOSEN = {".lua": 20, ".sql": 8}
"""One of so many changes is tried, by kind of file."""


class Mutation(NamedTuple):
    """One change of one line."""

    id: str
    path: str
    """Below `src/bide/engines`."""
    line: int
    """Counted from 1."""
    operator: str
    old: str
    new: str

    @property
    def engine(self) -> str:
        """Whose source it changes."""
        return self.path.partition("/")[0]

    @property
    def name(self) -> str:
        """What is changed, in one line."""
        return f"{self.id} {self.operator}: {self.new.strip()}"

    def applied(self, text: str) -> str | None:
        """Return the file's text with the change; `None` if the line is another one now."""
        lines = text.split("\n")
        if lines[self.line - 1] != self.old:
            return None
        lines[self.line - 1] = self.new
        return "\n".join(lines)


class Operator(NamedTuple):
    """What is looked for in the code of a line, and what it becomes."""

    name: str
    pattern: re.Pattern[str]
    becomes: Callable[[re.Match[str]], str]


def _swap(name: str, *pairs: tuple[str, str], word: bool = False) -> Operator:
    """Return an operator that puts each of a pair for the other."""
    table = {old: new for pair in pairs for old, new in (pair, pair[::-1])}
    texts = "|".join(re.escape(text) for text in sorted(table, key=len, reverse=True))
    pattern = rf"\b(?:{texts})\b" if word else rf"(?<![<>=~!|])(?:{texts})(?![<>=~|])"
    return Operator(name, re.compile(pattern), lambda found: table[found[0]])


def _sub(name: str, pattern: str, becomes: str) -> Operator:
    return Operator(name, re.compile(pattern), lambda found: found.expand(becomes))


_NUMBER = Operator(
    "another number",
    re.compile(r"(?<![\w.'\"])\d+(?![\w.'\"])"),
    lambda found: str(int(found[0]) + 1),
)
_END = r"(?= AND | OR | THEN| LOOP|\)| ORDER | GROUP | LIMIT | LEFT | CROSS |;|$)"
_CONDITION = r"((?:(?!EXISTS|BETWEEN|SELECT)[^()';]|\([^()]*\))+?)"

SQL = [
    _swap("comparison", ("<", "<="), (">", ">=")),
    _swap("sign", (" + ", " - ")),
    _swap("minimum", ("min(", "max(")),
    _NUMBER,
    _sub("no condition", rf"\b(WHERE|AND|ON) (?!CONFLICT){_CONDITION}{_END}", r"\1 (\2 OR TRUE)"),
    _sub("no exception", r"\bNOT EXISTS\b", "EXISTS"),
    _sub("null", r"\bIS NOT NULL\b", "IS NULL"),
    _sub("null", r"\bIS NULL\b", "IS NOT NULL"),
    _sub("direction", r"\bORDER BY ([\w.\"]+)(?! DESC)", r"ORDER BY \1 DESC"),
    _sub("order", r"\bORDER BY ([\w.\"]+), ([\w.\"]+)", r"ORDER BY \1"),
    _sub("limit", r"\bLIMIT (\?|:\w+)", r"LIMIT \1 + 1"),
    _sub("join", r"\bLEFT JOIN\b", "JOIN"),
    _sub("count", r"\bcount\(\*\)", "count(*) + 1"),
    _sub("not set", r"(?<=[ ,])(\w+) = (\?|:\w+)(?=,| WHERE|$)", r"\1 = iif(\2 IS NULL, \1, \1)"),
    _sub("unique", r"\bUNIQUE INDEX\b", "INDEX"),
]

_NO_KEYWORD = r"(?!(?:return|local|function|if|for)\b)"

LUA = [
    _swap("comparison", ("<", "<="), (">", ">=")),
    _swap("equality", ("==", "~=")),
    _swap("sign", (" + ", " - ")),
    _swap("minimum", ("math.min", "math.max"), word=True),
    _swap("and", ("and", "or"), word=True),
    _NUMBER,
    _sub("not", r"\bnot ", ""),
    _sub("always", r"\b(if|elseif) (.+) then\b", r"\1 true then"),
    _sub("never", r"\b(if|elseif) (.+) then\b", r"\1 false then"),
    _sub("not done", rf"^(\s*){_NO_KEYWORD}[\w.]+(?:\[[^]]+\])? = .+[^,({{]$", r"\1"),
    _sub("not done", rf"^(\s*){_NO_KEYWORD}[\w.:]+\(.*\)$", r"\1"),
]

_COMMENT = re.compile(r"--.*")
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")


def _masked(line: str, suffix: str) -> str:
    """Return a line whose comment, and in Lua whose texts, no pattern finds anything in."""
    line = _COMMENT.sub(lambda found: " " * len(found[0]), line)
    if suffix == ".lua":
        line = _TEXT.sub(lambda found: f"'{'_' * (len(found[0]) - 2)}'", line)
    return line.rstrip()


def _balanced(code: str) -> bool:
    return all(code.count(left) == code.count(right) for left, right in ("()", "[]", "{}"))


def mutations(engines: Path, path: Path) -> Iterator[Mutation]:
    """Yield every change of a file, those that are not chosen as well."""
    name = path.relative_to(engines).as_posix()
    equal: Counter[tuple[str, str]] = Counter()
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        code = _masked(line, path.suffix)
        for operator in SQL if path.suffix == ".sql" else LUA:
            if operator.name in ("not done", "always", "never") and not _balanced(code):
                continue  # it goes on in the next line
            for found in operator.pattern.finditer(code):
                # What is found is changed in the line itself, where texts are what they are.
                whole = operator.pattern.match(line, found.start()) or found
                new = line[: found.start()] + operator.becomes(whole) + line[whole.end() :]
                key = operator.name, line.strip()
                told = f"{name}|{operator.name}|{line.strip()}|{equal[key]}"
                equal[key] += 1
                id = hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()[:6]
                yield Mutation(id, name, number, operator.name, line, new)


def chosen(engines: Path, *, every: bool = False) -> list[Mutation]:
    """Return the changes that are tried of all SQL and Lua below a folder; or all there are."""
    return [
        mutation
        for path in sorted(engines.rglob("*.*"))
        if path.suffix in CHOSEN
        for mutation in mutations(engines, path)
        if every or int(mutation.id, 16) % CHOSEN[path.suffix] == 0
    ]
