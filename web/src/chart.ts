// Charts over time. Loaded when a page has one.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Line {
  label: string;
  values: (number | null)[];
  color: string;
  fill?: boolean;
}

const DAY = 86_400;

export interface ChartOptions {
  parent: HTMLElement;
  times: number[];
  lines: Line[];
  /** One bar for each day. */
  daily?: boolean;
  show: (value: number) => string;
}

const HEIGHT = 190;

/** Draw a chart; what is returned takes it away again. */
export function drawChart({ parent, times, lines, daily, show }: ChartOptions): () => void {
  const styles = getComputedStyle(document.documentElement);
  const probe = document.createElement("span");
  parent.append(probe);
  // Canvas knows no variables, and no colours that depend on the scheme.
  const resolved = (name: string) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const ink = resolved("--quiet");
  const grid = resolved("--line");
  const drawn = lines.map((line) => ({ ...line, stroke: resolved(line.color) }));
  probe.remove();
  const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid }, font: `12px ${styles.fontFamily}` };
  // A chart of one moment has no width of its own.
  const margin = daily ? DAY / 2 : times.length > 1 ? 0 : 30;
  const chart = new uPlot(
    {
      width: Math.max(200, parent.clientWidth),
      height: HEIGHT,
      cursor: { drag: { x: false, y: false } },
      scales: {
        x: { time: true, range: () => [(times[0] ?? 0) - margin, (times.at(-1) ?? 0) + margin] },
        y: { range: (_chart, _low, high) => [0, high > 0 ? high * 1.1 : 1] },
      },
      axes: [axis, { ...axis, size: 64, values: (_chart, values) => values.map(show) }],
      series: [
        {},
        ...drawn.map((line) => ({
          label: line.label,
          stroke: line.stroke,
          width: 2,
          fill: line.fill ? `color-mix(in srgb, ${line.stroke} 20%, transparent)` : undefined,
          points: { show: !daily && line.values.filter((value) => value !== null).length < 5, size: 5 },
          paths: daily ? uPlot.paths.bars!({ size: [0.5, 60] }) : undefined,
          spanGaps: true,
          value: (_chart: uPlot, value: number | null) => (value === null ? "–" : show(value)),
        })),
      ],
    },
    [times, ...lines.map((line) => line.values)],
    parent,
  );
  const resized = new ResizeObserver(() => {
    if (parent.clientWidth) chart.setSize({ width: parent.clientWidth, height: HEIGHT });
  });
  resized.observe(parent);
  return () => {
    resized.disconnect();
    chart.destroy();
  };
}
