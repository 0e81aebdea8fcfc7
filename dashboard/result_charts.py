"""What the coordinator says of models and data → Plotly figures: ROC, confusion, calibration, rivals, counts."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app.schemas.results import ComparedRun, Curve, Results
from app.schemas.runs import Metric, RunSite
from app.schemas.shape import MetricName
from app.schemas.window import WindowData
from dashboard.charts import DASHES, HEIGHT, SCALE, Chart, Column, colour, figure
from dashboard.words import METRICS, count, interval, number, spaced

PATTERN = {"fillmode": "overlay", "fgcolor": "white", "fgopacity": 0.45, "size": 9}
ERROR = "#888888"
SAMPLE = 400  # patches at most behind a histogram, as the site counts them


def roc(curves: Sequence[Curve]) -> Chart:
    """ROC curves, with the AUC and both counts of each in the legend."""
    chance = go.Scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        line={"color": "#888888", "width": 1, "dash": "dot"},
        showlegend=False,
        hoverinfo="skip",
    )
    traces = [chance, *(roc_line(curve, index) for index, curve in enumerate(curves))]
    below = {"orientation": "h", "yanchor": "top", "y": -0.14, "x": 0}
    x, y = "false positive rate (1 − specificity)", "true positive rate (sensitivity)"
    made = figure(traces, x, y, height=560 + 24 * len(curves), legend=below)
    made.update_xaxes(range=[0, 1])
    made.update_yaxes(range=[0, 1.01])
    points = [
        (curve, *rates)
        for curve in curves
        for rates in zip(curve.false_positive_rate, curve.true_positive_rate, strict=True)
    ]
    columns: dict[str, Column] = {
        "curve": [curve.name for curve, _, _ in points],
        "false positive rate": [rate for _, rate, _ in points],
        "true positive rate": [rate for _, _, rate in points],
        "positives": [curve.positives for curve, _, _ in points],
        "negatives": [curve.negatives for curve, _, _ in points],
        "AUC": [curve.auc.value for curve, _, _ in points],
        "AUC low": [curve.auc.low for curve, _, _ in points],
        "AUC high": [curve.auc.high for curve, _, _ in points],
    }
    areas = "; ".join(f"{curve.name}: AUC {interval(curve.auc)}" for curve in curves)
    return Chart(made, columns, f"ROC curves. {areas}")


def roc_line(curve: Curve, index: int) -> go.Scatter:
    """One ROC curve."""
    return go.Scatter(
        x=curve.false_positive_rate,
        y=curve.true_positive_rate,
        name=f"{spaced(curve.name)}: AUC {interval(curve.auc)}, n = {curve.positives:,} / {curve.negatives:,}",
        mode="lines",
        line={"color": colour(index), "width": 2, "dash": DASHES[index % len(DASHES)]},
        hovertemplate="%{x:.2f} / %{y:.2f}<extra>" + spaced(curve.name) + "</extra>",
    )


def confusion(results: Results) -> Chart:
    """Which class was taken for which: counts, coloured by the share of the true class."""
    names = [spaced(each.name) for each in results.classes]
    shares = [[cell / max(1, sum(row)) for cell in row] for row in results.confusion]
    heat = go.Heatmap(
        x=names,
        y=names,
        z=shares,
        text=results.confusion,
        colorscale=SCALE,
        zmin=0,
        zmax=1,
        colorbar={
            "tickformat": ".0%",
            "thickness": 12,
            "outlinewidth": 0,
        },
        hovertemplate="true %{y}, named %{x}: %{text} patches (%{z:.0%})<extra></extra>",
    )
    numbers = go.Scatter(  # black on light cells and white on dark ones
        x=names * len(names),
        y=[name for name in names for _ in names],
        text=[str(cell) for row in results.confusion for cell in row],
        textfont={"color": ["black" if part > 0.5 else "white" for row in shares for part in row]},
        mode="text",
        hoverinfo="skip",
        showlegend=False,
    )
    x = f"named by the model (n = {count(results.n)} patches)"
    made = figure([heat, numbers], x, "true class", margin_t=8)
    broken = [name.replace(" ", "<br>") for name in names]  # short enough to stand upright
    made.update_xaxes(range=[-0.5, len(names) - 0.5], tickvals=names, ticktext=broken, tickangle=0)
    made.update_layout(xaxis_tickfont_size=10, yaxis_tickfont_size=10)
    made.update_yaxes(range=[len(names) - 0.5, -0.5])
    columns: dict[str, Column] = {
        "true class": names,
        **{name: [row[at] for row in results.confusion] for at, name in enumerate(names)},
    }
    return Chart(made, columns, f"Confusion matrix of {results.n} test patches")


def calibration(results: Results) -> Chart:
    """How often the model is right against how sure it is."""
    bins = [each for each in results.calibration if each.n and each.confidence is not None]
    ideal = go.Scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        line={"color": "#888888", "width": 1, "dash": "dot"},
        name="perfectly calibrated",
        hoverinfo="skip",
    )
    dots = go.Scatter(
        x=[each.confidence for each in bins],
        y=[each.accuracy.value for each in bins],
        error_y=error_bars([each.accuracy for each in bins]),
        text=[f"n = {each.n:,}" for each in bins],
        mode="markers",
        marker={"size": [6 + 22 * (each.n / max(1, results.n or 0)) ** 0.5 for each in bins], "color": colour(0)},
        name="this model",
        hovertemplate="sure by %{x:.2f}, right in %{y:.2f}<br>%{text}<extra></extra>",
    )
    x = f"how sure it is (highest score; n = {count(results.n)} patches)"
    made = figure([ideal, dots], x, "how often it is right, 95 % interval")
    made.update_xaxes(range=[0, 1])
    made.update_yaxes(range=[0, 1.02])
    columns: dict[str, Column] = {
        "n": [each.n for each in bins],
        "confidence": [each.confidence for each in bins],
        "accuracy": [each.accuracy.value for each in bins],
        "low": [each.accuracy.low for each in bins],
        "high": [each.accuracy.high for each in bins],
    }
    return Chart(made, columns, f"Calibration; mean error {number(results.calibration_error)}")


def error_bars(metrics: Sequence[Metric]) -> dict[str, Any]:
    """Intervals as Plotly wants them: lengths above and below the value."""
    reach = [
        (0.0, 0.0) if m.value is None or m.low is None or m.high is None else (m.value - m.low, m.high - m.value)
        for m in metrics
    ]
    return {
        "type": "data",
        "symmetric": False,
        "array": [above for _, above in reach],
        "arrayminus": [below for below, _ in reach],
        "thickness": 1.5,
        "color": ERROR,
        "width": 5,
    }


def dot_plot(metric: MetricName, rows: Mapping[str, Metric], colours: Sequence[str]) -> go.Figure:
    """One dot a row with its 95 % interval, the first row on top; a row without a value says so."""
    dots = go.Scatter(
        x=[value.value for value in rows.values()],
        y=list(rows),
        error_x=error_bars(list(rows.values())),
        mode="markers",
        marker={"size": 11, "color": list(colours)},
        hovertemplate="%{y}: %{x:.3f}<extra></extra>",
    )
    made = figure([dots], f"{METRICS[metric]} with 95 % interval", "", height=90 + 44 * max(2, len(rows)))
    made.update_layout(margin_t=8, showlegend=False)
    return made.update_yaxes(autorange="reversed", type="category")


def bars(runs: Sequence[ComparedRun], metric: MetricName) -> Chart:
    """One dot a run with its 95 % interval, the first run on top."""
    shown = [(run, run.headline) for run in runs if run.headline is not None]
    values = [getattr(headline, metric) for _, headline in shown]
    plain = [run.name if run.name == run.algorithm else f"{run.name} ({run.algorithm})" for run, _ in shown]
    names = [
        f"{name}, run {run.run}" if plain.count(name) > 1 else name
        for name, (run, _) in zip(plain, shown, strict=True)
    ]
    labels = [f"{name}<br>n = {count(headline.n)}" for name, (_, headline) in zip(names, shown, strict=True)]
    rows = dict(zip(labels, values, strict=True))
    columns: dict[str, Column] = {
        "run": names,
        "value": [value.value for value in values],
        "low": [value.low for value in values],
        "high": [value.high for value in values],
        "n": [headline.n for _, headline in shown],
    }
    made = dot_plot(metric, rows, [colour(at) for at in range(len(rows))])
    return Chart(made, columns, f"{METRICS[metric]} of {len(shown)} runs with 95 % intervals")


def class_counts(sites: Sequence[RunSite], part: str) -> Chart:
    """Patches by class, one bar a site; withheld counts have no bar."""
    counts: dict[str, dict[str, int | None]] = {site.site: getattr(site, part) for site in sites}
    classes = list(dict.fromkeys(name for own in counts.values() for name in own))
    traces = [
        go.Bar(
            x=list(counts),
            y=[own.get(name) for own in counts.values()],
            name=spaced(name),
            marker={"color": colour(index), "pattern": {**PATTERN, "shape": ("", "/", ".", "x", "-")[index % 5]}},
            hovertemplate="%{x}: %{y:,} patches<extra>" + spaced(name) + "</extra>",
        )
        for index, name in enumerate(classes)
    ]
    made = figure(
        traces, "site", "patches", barmode="stack", showlegend=True, legend_traceorder="normal", height=HEIGHT + 30
    )
    made.update_yaxes(tickformat=",")
    columns: dict[str, Column] = {
        "site": list(counts),
        **{name: [own.get(name) for own in counts.values()] for name in classes},
    }
    return Chart(made, columns, f"Patches by class and site for {part}")


def histogram(site: RunSite | WindowData) -> Chart:
    """A site's grey levels as trained on, and before its style was applied."""
    rows: dict[str, Column] = {}
    if site.histogram_before is not None:
        rows["before the site's style"] = site.histogram_before
    if site.histogram is not None:
        rows["as trained on"] = site.histogram
    bins = max((len(row) for row in rows.values()), default=0)
    centres = [(at + 0.5) / bins for at in range(bins)]
    dashed = {"as trained on": "solid", "before the site's style": "dash"}
    traces = [
        go.Scatter(
            x=centres,
            y=values,
            name=name,
            mode="lines",
            fill="tozeroy" if name == "as trained on" else None,
            line={"color": colour(0 if name == "as trained on" else 1), "dash": dashed[name], "shape": "hvh"},
        )
        for name, values in rows.items()
    ]
    made = figure(traces, "grey level (0 black, 1 white)", "share of pixels", height=300, showlegend=True)
    made.update_xaxes(range=[0, 1])
    return Chart(made, {"grey level": centres, **rows}, f"Grey levels of {site.site}")
