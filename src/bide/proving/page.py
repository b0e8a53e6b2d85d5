"""The result as a page that stands alone: it loads nothing from elsewhere."""

from collections.abc import Iterable
from html import escape

from bide.proving.proof import Proof

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em;
  color: #1c2128; background: #fff; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3em 1em .3em 0;
  border-bottom: 1px solid #d0d7de; }
th { font-weight: 600; white-space: nowrap; }
.good { color: #116329; } .bad { color: #a40e26; font-weight: 600; }
pre { background: #f6f8fa; padding: .8em; overflow-x: auto; font-size: .85em; }
"""


def page_of(proof: Proof, made: str) -> str:
    """Return the result as HTML.

    Args:
        proof: the result.
        made: when the run ended, as text.
    """
    verdict = "good" if proof else "bad"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>bide prove: {_text(proof.store)}</title><style>{STYLE}</style></head><body>",
        f"<h1>bide prove: {_text(proof.store)}</h1>",
        f'<p class="{verdict}">{_text(proof.verdict())}</p>',
        f"<p>{_text(made)}, queue {_text(proof.queue)}, seed {proof.seed}</p>",
        "<table>",
        *(
            f'<tr><th>{_text(name)}</th><td class="{"bad" if is_wrong else ""}">'
            f"{_text(value)}</td></tr>"
            for name, value, is_wrong in proof.table()
        ),
        "</table>",
        "<h2>What could be lost with the settings of the store</h2>",
        *_settings(proof),
        *_violations(proof),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _text(text: str) -> str:
    return escape(text)


def _settings(proof: Proof) -> Iterable[str]:
    """Yield the findings as a table."""
    if proof.unexamined:
        yield f"<p>{_text(proof.unexamined)}</p>"
        return
    if not proof.findings:
        yield '<p class="good">bide doctor has found nothing.</p>'
        return
    yield "<table><tr><th>level</th><th>setting</th><th>loss</th><th>fix</th></tr>"
    for finding in proof.findings:
        cells = (finding.level, finding.what, finding.loss, finding.fix)
        yield f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"


def _violations(proof: Proof) -> Iterable[str]:
    """Yield what was broken, with the stories."""
    if proof:
        return
    yield "<h2>What was broken</h2>"
    for violation in proof.examples:
        yield f'<p class="bad">{_text(violation.what)}</p>'
        if violation.story:
            yield f"<pre>{_text(chr(10).join(violation.story))}</pre>"
    if proof.untold:
        yield f"<p>and {proof.untold:,} more</p>"
