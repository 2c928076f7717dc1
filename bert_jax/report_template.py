"""The fixed part of the reports: their head, style and script, which load nothing from elsewhere."""

HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>$title</title>
<style>$style</style>
</head>
"""  # of a page that stands alone and loads nothing

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1b1f27; --muted: #5a6372; --line: #e2e5ea; --grid: #eceef2;
  --train: #2c63c9; --evaluation: #c2570c; --reference: #6b7280; --good: #17703d; --warn: #8f5200; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1217; --card: #171b22; --text: #e7eaf0; --muted: #9aa4b4; --line: #2a303a; --grid: #232933;
    --train: #7aa7ff; --evaluation: #ff9a4d; --reference: #98a1b0; --good: #62d08f; --warn: #f0b45c; --bad: #ff8a80;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
header, main, footer { max-width: 1160px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 36px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 14px; }
h3 { font-size: 14px; font-weight: 600; margin: 0; }
h3::first-letter, th:not(:has(code))::first-letter, dt::first-letter { text-transform: uppercase; }
.kicker { color: var(--muted); margin: 0 0 4px; }
.state { margin: 10px 0 0; font-weight: 600; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; margin: 26px 0 0; }
.tiles div, .chart, .table {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px;
}
.tiles dt { color: var(--muted); font-size: 13px; }
.tiles dd { margin: 2px 0 0; font-size: 25px; font-weight: 600; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tiles small {
  display: block; margin-top: 3px; color: var(--muted); font-size: 12.5px; font-weight: 400; line-height: 1.35;
}
.notes {
  margin: 22px 0 0; padding: 12px 16px 12px 34px; background: var(--card);
  border: 1px solid var(--line); border-left: 4px solid var(--warn); border-radius: 8px;
}
.notes li { overflow-wrap: anywhere; }
.bar { display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between; gap: 0 24px; }
.switch { border: 0; padding: 0; margin: 0; color: var(--muted); font-size: 13px; }
.switch legend { float: left; padding: 0 10px 0 0; }
.switch label { margin-right: 10px; }
.switch input { accent-color: var(--train); margin: 0 4px 0 0; vertical-align: -1px; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; }
.chart { margin: 0; padding-bottom: 8px; min-width: 0; }
.chart:first-child { grid-column: 1 / -1; }
.chart svg { display: block; width: 100%; height: auto; margin-top: 6px; cursor: crosshair; touch-action: pan-y; }
.readout {
  display: flex; flex-wrap: wrap; gap: 0 12px; min-height: 1.5em; margin: 0;
  color: var(--muted); font-size: 12px; font-variant-numeric: tabular-nums;
}
.readout span { white-space: nowrap; }
.readout b { color: var(--text); font-weight: 600; }
.readout span::before {
  content: ""; display: inline-block; width: 12px; height: 3px; border-radius: 2px; margin-right: 4px;
  vertical-align: 3px; background: var(--train);
}
.readout .raw::before { opacity: 0.35; }
.readout .evaluation::before {
  background: var(--evaluation); width: 8px; height: 8px; border-radius: 50%; vertical-align: 0;
}
.readout .at::before { display: none; }
.grid { stroke: var(--grid); } .base { stroke: var(--line); } .cursor { stroke: var(--muted); visibility: hidden; }
.tick, .reference-label { fill: var(--muted); font-size: 11.5px; font-variant-numeric: tabular-nums; }
code { font: 12.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
polyline {
  vector-effect: non-scaling-stroke; fill: none; stroke: var(--train); stroke-linejoin: round; stroke-linecap: round;
}
polyline.raw { stroke-width: 1; opacity: 0.35; }
polyline.smoothed { stroke-width: 2; }
polyline.evaluation { stroke: var(--evaluation); stroke-width: 1.5; }
circle { fill: var(--train); } circle.evaluation { fill: var(--evaluation); stroke: var(--card); }
.reference { stroke: var(--reference); stroke-dasharray: 5 4; stroke-width: 1.5; }
.logarithmic, body.log .linear { display: none; } body.log .logarithmic { display: inline; }
.tables { columns: 2; column-gap: 14px; }
.table { break-inside: avoid; margin-bottom: 14px; overflow-x: auto; }
.table h3 { margin-bottom: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: left; vertical-align: top; padding: 5px 0; border-top: 1px solid var(--grid); }
tr:first-child > * { border-top: 0; }
th { font-weight: 400; color: var(--muted); padding-right: 18px; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
thead th { font-weight: 600; }
.wide td + td, .wide th + th { padding-left: 14px; }
details { margin-bottom: 14px; } summary { cursor: pointer; font-weight: 600; font-size: 14px; }
details table { margin-top: 8px; }
footer { color: var(--muted); font-size: 13px; padding-top: 20px; padding-bottom: 40px; }
:focus-visible { outline: 2px solid var(--train); outline-offset: 2px; border-radius: 4px; }
@media screen and (max-width: 800px) {
  .charts { grid-template-columns: minmax(0, 1fr); } .tables { columns: 1; }
  header, main, footer { padding-left: 14px; padding-right: 14px; }
  .readout { min-height: 3em; align-content: start; }
  .tick, .reference-label { font-size: 14px; }
  .chart:first-child .tick, .chart:first-child .reference-label { font-size: 24px; }
}
@media print {
  :root { --page: #fff; --card: #fff; --text: #000; --muted: #444; --line: #ccc; --grid: #e5e5e5; --train: #2c63c9;
    --evaluation: #c2570c; --reference: #6b7280; --good: #17703d; --warn: #8f5200; --bad: #b3261e; }
  body { font-size: 11px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .switch, details:not([open]) { display: none; }
  header { padding-top: 0; } header, main, footer { max-width: none; padding-left: 0; padding-right: 0; }
  .chart, .tiles div { break-inside: avoid; } h2 { break-after: avoid; }
}
"""

SCRIPT = """
"use strict";
const places = [];
for (const figure of document.querySelectorAll("figure.chart")) {
  const chart = JSON.parse(figure.querySelector("script").textContent);
  const svg = figure.querySelector("svg"), cursor = svg.querySelector(".cursor");
  const readout = figure.querySelector(".readout"), latest = [...readout.childNodes];
  const lines = [...svg.querySelectorAll("polyline")];
  let current = null;

  const x = (step) => {
    const log = document.body.classList.contains("log");
    const share = log ? Math.log(Math.max(step, chart.first) / chart.first) / Math.log(chart.last / chart.first)
                      : (step - chart.first) / (chart.last - chart.first);
    return chart.left + (chart.right - chart.left) * share;
  };
  const place = () => {
    chart.series.forEach((series, which) => {
      const points = lines[which].points, circles = svg.querySelectorAll("circle." + series.kind);
      series.steps.forEach((step, index) => {
        points[index].x = x(step);
        if (circles.length) circles[index].setAttribute("cx", x(step));
      });
    });
    hide();
  };
  const nearest = (steps, distance) => {
    let best = 0;
    steps.forEach((step, index) => { if (distance(step) < distance(steps[best])) best = index; });
    return best;
  };
  const number = (value) => chart.share ? (100 * value).toFixed(1) + "%"
    : value.toLocaleString("en", Math.abs(value) < 1000 ? {maximumSignificantDigits: 4} : {maximumFractionDigits: 0});
  const entry = (kind, label, value) => {
    const span = document.createElement("span"), bold = document.createElement("b");
    span.className = kind;
    bold.textContent = value;
    span.append(label + " ", bold);
    return span;
  };
  const show = (index) => {
    const steps = chart.series[0].steps, step = steps[index];
    current = index;
    cursor.setAttribute("transform", "translate(" + x(step) + " 0)");
    cursor.style.visibility = "visible";
    readout.replaceChildren(entry("at", "step", step.toLocaleString("en")), ...chart.series.map((series) => {
      const at = nearest(series.steps, (other) => Math.abs(other - step));
      const where = series.kind === "evaluation" && series.steps[at] !== step
        ? " (" + series.steps[at].toLocaleString("en") + ")" : "";
      return entry(series.kind, series.label + where, number(series.values[at]));
    }));
  };
  const hide = () => {
    current = null;
    cursor.style.visibility = "hidden";
    readout.replaceChildren(...latest);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    show(nearest(chart.series[0].steps, (step) => Math.abs(x(step) - at)));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key], count = chart.series[0].steps.length;
    if (!move) return;
    event.preventDefault();
    show(current === null ? (move > 0 ? 0 : count - 1) : Math.min(Math.max(current + move, 0), count - 1));
  });
  places.push(place);
}
for (const choice of document.querySelectorAll(".switch input")) {
  choice.closest("fieldset").hidden = false;
  choice.addEventListener("change", () => {
    document.body.classList.toggle("log", choice.value === "log" && choice.checked);
    for (const place of places) place();
  });
}
"""
