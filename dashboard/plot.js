// A Plotly figure → a chart that changes in place when new numbers come: zoom and hidden curves stay, nothing blinks.
const FULLSCREEN = {
  name: "Full screen",
  icon: { width: 24, height: 24, path: "M3 9V3h6v2H5v4zM15 3h6v6h-2V5h-4zM3 15h2v4h4v2H3zM19 15h2v6h-6v-2h4z" },
  click: (plot) => (document.fullscreenElement ? document.exitFullscreen() : plot.requestFullscreen()),
};
const CONFIG = {
  displaylogo: false,
  modeBarButtonsToAdd: [FULLSCREEN],
  modeBarButtonsToRemove: ["select2d", "lasso2d", "toImage"],
};

function loaded(url) {
  window.plotlyLoading ??= new Promise((done, failed) => {
    const script = Object.assign(document.createElement("script"), { src: url, onload: done, onerror: failed });
    document.head.append(script);
  });
  return window.plotlyLoading;
}

function template(plot) {
  const style = getComputedStyle(plot);
  const [text, ground, line, font] = ["text-color", "background-color", "border-color", "font"].map((name) =>
    style.getPropertyValue(`--st-${name}`).trim()
  );
  const axis = { gridcolor: line, linecolor: line, zeroline: false, title: { standoff: 12 } };
  return {
    layout: {
      paper_bgcolor: ground,
      plot_bgcolor: ground,
      font: { family: font, color: text, size: 12 },
      hoverlabel: { bgcolor: ground, bordercolor: line, font: { color: text } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: text, activecolor: text },
      xaxis: { ...axis, showgrid: false },
      yaxis: axis,
    },
  };
}

function size(plot) {
  const full = document.fullscreenElement === plot;
  return { width: plot.clientWidth, height: full ? window.innerHeight : plot.usualHeight };
}

function fit(plot) {
  const { width, height } = size(plot);
  if (width !== plot.layout.width || height !== plot.layout.height) Plotly.relayout(plot, { width, height });
}

export default async function ({ data, parentElement }) {
  const plot = parentElement.querySelector(".plot");
  const { data: traces, layout } = JSON.parse(data.figure);
  plot.setAttribute("aria-label", data.words);
  plot.usualHeight = layout.height;
  plot.style.minHeight = `${layout.height}px`;
  await loaded(data.plotly);
  await Plotly.react(plot, traces, { ...layout, ...size(plot), template: template(plot) }, CONFIG);
  plot.resized ??= new ResizeObserver(() => fit(plot));
  plot.resized.observe(plot);
  return () => plot.resized.disconnect();
}
