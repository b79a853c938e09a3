"""`verfedsv report`: what each client contributed, for people who do not read code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich import filesize
from rich.console import Console
from rich.markup import escape

from verfedsv.cli.options import AnyRunArgument, TrustHead
from verfedsv.cli.output import check_writable, print_text, write_file
from verfedsv.cli.progress import follow, progress_bar, working
from verfedsv.errors import InputError
from verfedsv.report.summary import Summary
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.stored import find_run
from verfedsv.settlement import Settlement

Format = Literal["html", "md", "json"]
_FORMATS: dict[str, Format] = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".json": "json"}
_STANDARD_OUTPUT = Path("-")


def report(
    run: AnyRunArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write, or - for standard output. Default: report.html.",
            metavar="FILE",
        ),
    ] = None,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="html, md or json. Default: from the file extension.", metavar="FORMAT"),
    ] = None,
    settlement: Annotated[
        Path | None, typer.Option(help="Payouts to show: the JSON that verfedsv settle -o wrote.", metavar="FILE")
    ] = None,
    trust_head: TrustHead = False,
) -> None:
    """Write a report of a run: who contributed how much, how certain that is, and why.

    The HTML is a single file without external resources: mail it, open it in any browser, print it. HTML needs pip
    install '.[report]' in the checkout of verfedsv; Markdown, with the same sentences and tables, and JSON, with the
    numbers, do not. Values are read from the run's valuation.json if it is up to date; otherwise the run is valued
    first.

    Exit codes: 0 written; 2 the run or an option cannot be used, with a message that explains why; 130 interrupted.

    Example: verfedsv report runs/credit -o credit.html
    """
    form = form or _format_of(output)
    path = Path(f"report.{form}") if output is None else output
    if path != _STANDARD_OUTPUT:
        check_writable(path, "report")
    render = _renderer(form)
    progress_console = Console(stderr=True)
    stopped = "stopped; nothing was written."
    with working(progress_console, stopped) as check:
        payments = None if settlement is None else Settlement.read(settlement)
        summary = _summarise(progress_console, find_run(run, trust_head=trust_head), payments, check)
        text = render(summary)
    if path == _STANDARD_OUTPUT:
        print_text(text)
        return
    write_file(path, text)
    _show(Console(), summary, path)


def _format_of(output: Path | None) -> Format:
    """Return the format given by the ending of a file name."""
    if output is None or output == _STANDARD_OUTPUT:
        return "html"
    try:
        return _FORMATS[output.suffix.lower()]
    except KeyError:
        allowed = ", ".join(_FORMATS)
        raise InputError(
            f"cannot tell what {output.name} should be; use one of the endings {allowed}, or --format"
        ) from None


def _summarise(console: Console, run: RunFolder, settlement: Settlement | None, check: Callable[[], None]) -> Summary:
    from verfedsv.report.reading import summarise

    with progress_bar(console) as bar:
        task = bar.add_task(escape(f"reading and valuing {run.path.name or run.path}"), total=None)
        return summarise(run, follow(bar, task, check), settlement)


def _renderer(form: Format) -> Callable[[Summary], str]:
    """Return the function that renders a summary, imported late: charts, which only HTML has, take a second."""
    if form == "json":
        return Summary.to_json
    if form == "md":
        from verfedsv.report.markdown import to_markdown

        return to_markdown
    from verfedsv.report.html import to_html

    return to_html


def _show(console: Console, summary: Summary, path: Path) -> None:
    from verfedsv.report.terminal import brief

    for line in brief(summary, console.width):
        console.print(line, highlight=False)
    console.print(f"\nWrote {escape(str(path))} ({filesize.decimal(path.stat().st_size)}).", highlight=False)
