// A chart with a name and its newest figures as text, for whoever does not see it.
import { useEffect, useRef, useState } from "preact/hooks";
import type { drawChart, Line } from "../chart";
import { Problem } from "./ui";

// Once it is there a chart is drawn anew at once: nobody sees the moment between two of them.
let draw: typeof drawChart | null = null;

interface Props {
  title: string;
  times: number[];
  lines: Line[];
  daily?: boolean;
  show: (value: number) => string;
}

export function Chart({ title, times, lines, daily, show }: Props) {
  const parent = useRef<HTMLDivElement>(null);
  const [error, setError] = useState<unknown>(null);
  const [scheme, setScheme] = useState(0);

  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setScheme((count) => count + 1);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  useEffect(() => {
    let remove: (() => void) | null = null;
    let gone = false;
    const drawn = () => {
      if (!gone && parent.current && draw) remove = draw({ parent: parent.current, times, lines, daily, show });
    };
    if (draw) drawn();
    else {
      import("../chart").then((module) => {
        draw = module.drawChart;
        drawn();
      }, setError);
    }
    return () => {
      gone = true;
      remove?.();
    };
  }, [times, scheme]);

  const latest = lines.map((line) => {
    const value = line.values.findLast((each) => each !== null);
    return `${line.label} ${value === undefined || value === null ? "none" : show(value)}`;
  });
  return (
    <div class="chart">
      <h3>{title}</h3>
      <div role="img" aria-label={`${title} chart`} ref={parent} />
      <p class="unseen">Latest: {latest.join(", ")}</p>
      <Problem error={error} />
    </div>
  );
}
