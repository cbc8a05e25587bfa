"""A postmortem as one page without anything from elsewhere, in light and dark. Pure; counterpart: `postmortem_text`."""

from collections.abc import Sequence
from html import escape

from replay.postmortem import MemorySample, Postmortem, Served
from replay.postmortem_text import KINDS, headline, how, hurt_row, memory, tokens, what
from replay.text import clock, count, duration, listed, time_of_day

WIDTH, HEIGHT = 860, 160
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 26, 26
NEXT_SHOWN = 40
SECOND_US = 1_000_000

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6470; --line: #d9dde3; --page: #ffffff; --box: #f5f6f8;
  --used: #2f6fd0; --own: #d9822b; --bad: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #9aa4b1; --line: #363c45; --page: #16191d;
  --box: #1f2329; --used: #6ea0f0; --own: #e6a15c; --bad: #ef6f61; } }
body { margin: 0 auto; max-width: 920px; padding: 24px 20px 60px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; }
h2 { font-size: 16px; margin: 28px 0 8px; }
p { margin: 4px 0; }
.soft { color: var(--soft); }
.lead { background: var(--box); border-left: 4px solid var(--bad); padding: 10px 14px; margin: 14px 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; }
td.fields { font-size: 12px; color: var(--soft); overflow-wrap: anywhere; }
pre { background: var(--box); padding: 10px 12px; overflow-x: auto; font-size: 12px; line-height: 1.45; margin: 6px 0; }
ol { padding-left: 22px; margin: 6px 0; } li { margin: 4px 0; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.axis { stroke: var(--line); } .total { stroke: var(--soft); stroke-dasharray: 4 4; }
.used { stroke: var(--used); fill: none; stroke-width: 2; } .own { stroke: var(--own); fill: none; stroke-width: 2; }
.bar { fill: var(--used); } .end { stroke: var(--bad); stroke-width: 2; }
"""


def postmortem_html(story: Postmortem) -> str:
    """The page."""
    incident = story.incident
    title = f"{KINDS[incident.kind]} of {incident.replica}"
    sections = [
        f"<h1>{escape(_sentence(title))}</h1>",
        f'<p class="soft">{clock(incident.at_us)}, run {incident.run}, event #{incident.seq}, '
        f"number {incident.number} of {story.of} in this log</p>",
        f'<div class="lead">{escape(_sentence(headline(story)))}.</div>',
        _suspects(story),
        _served(story),
        _memory(story),
        _lines(story),
        _next(story),
        _hurt(story),
        _running(story),
        _notes(story),
        _earlier(story),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body>\n</html>\n"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _suspects(story: Postmortem) -> str:
    items = [
        f"<li><b>{escape(suspect.kind)} {escape(suspect.name)}</b>: {escape('; '.join(suspect.evidence))}</li>"
        for suspect in story.suspects
    ]
    return f"<h2>Suspects, most likely first</h2><ol>{''.join(items)}</ol>" if items else ""


def _served(story: Postmortem) -> str:
    incident = story.incident
    if not story.served:
        return "<h2>It was serving nobody</h2>"
    rows = [
        (
            str(served.rid),
            duration(incident.at_us - served.since_us) if served.since_us else "",
            str(served.attempt),
            f"~{served.prompt_tokens} tokens" if served.prompt_tokens else f"{served.body_bytes} bytes",
            served.key,
            served.conversation[:12],
            tokens(served, incident),
        )
        for served in story.served
    ]
    head = ("request", "for", "attempt", "prompt", "key", "conversation", "tokens just before")
    charts = "".join(_tokens_chart(served, incident.at_us) for served in story.served[:4] if len(served.tokens) > 1)
    return f"<h2>It was serving</h2>{_table(head, rows)}{charts}"


def _memory(story: Postmortem) -> str:
    parts = []
    for gpu, samples in sorted(story.memory.items()):
        known = [sample for sample in samples if sample.used_mib >= 0]
        chart = _memory_chart(known, story.incident.at_us) if len(known) > 1 else ""
        parts.append(f"{chart}<p class='soft'>{escape(memory(gpu, samples))}</p>")
    return f"<h2>GPU memory before</h2>{''.join(parts)}" if parts else ""


def _lines(story: Postmortem) -> str:
    lines = "\n".join(escape(line) for line in story.incident.last_lines)
    return f"<h2>Its last lines</h2><pre>{lines}</pre>" if lines else ""


def _next(story: Postmortem) -> str:
    rows = [
        f"<tr><td>{time_of_day(step.at_us)}</td><td>#{step.seq}</td><td>{step.type}</td>"
        f'<td class="fields">{escape(what(step))}</td></tr>'
        for step in story.next[:NEXT_SHOWN]
    ]
    more = len(story.next) - NEXT_SHOWN
    rest = f'<p class="soft">and {more} more</p>' if more > 0 else ""
    table = f'<div class="scroll"><table>{"".join(rows)}</table></div>'
    return f"<h2>What the scheduler did next</h2>{table}{rest}" if rows else ""


def _hurt(story: Postmortem) -> str:
    if not story.hurt:
        return ""
    head = ("request", "how", "for", "key", "in the end")
    return f"<h2>Who was hurt</h2>{_table(head, [hurt_row(victim) for victim in story.hurt])}"


def _running(story: Postmortem) -> str:
    rows = [
        (each.replica, each.phase, ", ".join(map(str, each.gpus)) or "cpu", f"{each.load} of {each.slots or '?'}")
        for each in story.running
    ]
    return f"<h2>What ran</h2>{_table(('replica', 'phase', 'gpus', 'slots'), rows)}" if rows else ""


def _notes(story: Postmortem) -> str:
    rows = [(time_of_day(note.at_us), note.text) for note in story.notes]
    return f"<h2>Notes</h2>{_table(('at', ''), rows)}" if rows else ""


def _earlier(story: Postmortem) -> str:
    rows = [
        (str(each.number), clock(each.at_us), KINDS[each.kind], how(each), listed(each.rids, 5), each.reason)
        for each in story.earlier
    ]
    head = ("number", "at", "what", "how", "served", "reason")
    return f"<h2>Before, of the same model</h2>{_table(head, rows)}" if rows else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{heads}</tr>{body}</table></div>'


# --- charts ---------------------------------------------------------------------------------------------------------


class _Scale:
    """Times and values to places in a chart."""

    def __init__(self, from_us: int, to_us: int, most: int) -> None:
        self.from_us, self.to_us, self.most = from_us, max(to_us, from_us + 1), max(most, 1)

    def x(self, at_us: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at_us - self.from_us) / (self.to_us - self.from_us)

    def y(self, value: int) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / self.most)

    def frame(self, unit: str) -> str:
        """Axes, the most of each, and the end."""
        end = self.x(self.to_us)
        return (
            f'<line class="axis" x1="{LEFT}" y1="{self.y(0):.1f}" x2="{WIDTH - RIGHT}" y2="{self.y(0):.1f}"/>'
            f'<text x="{LEFT - 8}" y="{self.y(self.most) + 4:.1f}" text-anchor="end">{self.most} {unit}</text>'
            f'<text x="{LEFT - 8}" y="{self.y(0) + 4:.1f}" text-anchor="end">0</text>'
            f'<text x="{LEFT}" y="{HEIGHT - 8}">{duration(self.to_us - self.from_us)} before</text>'
            f'<line class="end" x1="{end:.1f}" y1="{TOP}" x2="{end:.1f}" y2="{self.y(0):.1f}"/>'
        )


def _svg(label: str, body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{body}</svg>'


def _memory_chart(samples: Sequence[MemorySample], at_us: int) -> str:
    total = max(sample.total_mib for sample in samples)
    scale = _Scale(samples[0].at_us, at_us, max(total, *(sample.used_mib for sample in samples)))
    body = scale.frame("MiB")
    if total > 0:
        y = scale.y(total)
        body += f'<line class="total" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
    body += _line("used", [(scale.x(each.at_us), scale.y(each.used_mib)) for each in samples])
    body += _line("own", [(scale.x(each.at_us), scale.y(each.own_mib)) for each in samples if each.own_mib >= 0])
    key = '<text x="{x}" y="12" text-anchor="end">blue: in use, orange: by this replica, dashed: all there is</text>'
    return _svg("memory in use before", body + key.format(x=WIDTH - RIGHT - 6))


def _line(name: str, points: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{name}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>' if points else ""


def _tokens_chart(served: Served, at_us: int) -> str:
    """A bar for each second or so: the frames that were seen in it."""
    scale = _Scale(served.tokens[0][0] - SECOND_US, at_us, max(number for _, number in served.tokens))
    bars = ""
    before_us = scale.from_us
    for seen_us, number in served.tokens:
        left, top = scale.x(max(before_us, seen_us - SECOND_US)) + 1, scale.y(number)
        width, height = max(scale.x(seen_us) - left, 1), scale.y(0) - top
        bars += f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
        before_us = seen_us
    label = f"request {served.rid}: {count(sum(number for _, number in served.tokens), 'frame')} before the end"
    key = f'<text x="{WIDTH - RIGHT - 6}" y="12" text-anchor="end">{escape(label)}</text>'
    return _svg(label, scale.frame("frames") + bars + key)
