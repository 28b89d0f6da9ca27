import { useRef, useState } from "preact/hooks";
import { get, query, SERVICE } from "../api";
import { Chart } from "../parts/chart";
import { Choice, Heading, Name, Problem, Text, useAsked, useEvery } from "../parts/ui";
import { Link, runPath } from "../router";
import type { PageProps } from "../shell";
import { count, seconds, time } from "../text";

interface Percentiles {
  p50: (number | null)[];
  p95: (number | null)[];
  p99: (number | null)[];
}

interface Series {
  complete: boolean;
  times: number[];
  active: number[];
  queued: number[];
  ended: number[];
  unsuccessful: number[];
  wait_sec: Percentiles;
  duration_sec: Percentiles;
  failures: Record<string, number>;
  usage: { day: string; user_id: string; runs: number; cpu_time_sec: number }[];
}

type Metrics = Record<string, { labels: Record<string, string>; value: number }[]>;

const WINDOWS: [string, string][] = [
  ["900", "15 minutes"],
  ["3600", "hour"],
  ["21600", "6 hours"],
  ["86400", "day"],
  ["604800", "week"],
];

const whole = (value: number) => String(Number(value.toFixed(value < 10 && value % 1 ? 1 : 0)));

export function AdminPage({ me, server }: PageProps) {
  if (!me.admin) {
    return (
      <>
        <Heading title="Admin">Admin</Heading>
        <Problem error="Only an admin may see this." />
      </>
    );
  }
  return (
    <>
      <Heading title="Admin">Admin</Heading>
      <Load />
      <Runtimes server={server} />
      <Audit />
    </>
  );
}

function Load() {
  const [window, setWindow] = useState("3600");
  const series = useAsked((signal) => {
    const from = new Date(Date.now() - Number(window) * 1000).toISOString();
    return get<Series>(`${SERVICE}/admin/series${query({ from, points: 60 })}`, signal);
  }, window);
  const metrics = useAsked((signal) => get<Metrics>(`${SERVICE}/admin/metrics`, signal), "metrics");
  const pool = useRef<{ times: number[]; cells: number[]; boxes: number[] }>({ times: [], cells: [], boxes: [] });
  useEvery(5000, () => {
    series.reload();
    metrics.reload();
  });

  const level = (name: string) => (metrics.value?.[name] ?? []).reduce((sum, each) => sum + each.value, 0);
  const last = useRef<Metrics | null>(null);
  if (metrics.value && metrics.value !== last.current) {
    last.current = metrics.value;
    const { times, cells, boxes } = pool.current;
    // What a server has at hand is known for now only: the page notes it while it is open.
    pool.current = {
      times: [...times, Date.now() / 1000].slice(-360),
      cells: [...cells, level("sandbox_pool_cells")].slice(-360),
      boxes: [...boxes, level("sandbox_boxes")].slice(-360),
    };
  }
  const shown = series.value ?? series.stale;
  const tiles: [string, string][] = [
    ["Running", whole(level("sandbox_runs_active"))],
    ["Waiting", whole(level("sandbox_queue_length"))],
    ["Boxes", whole(level("sandbox_boxes"))],
    ["Parked cells", whole(level("sandbox_pool_cells"))],
    ["Warm images", whole(level("sandbox_templates"))],
    ["Ready sandboxes", whole(level("sandbox_stock_ready"))],
    ["Live sandboxes", whole(level("sandbox_bindings"))],
    ["Log streams", whole(level("sandbox_ws_connections"))],
    ["Runs refused", whole(level("sandbox_runs_refused_total"))],
  ];
  const failures = Object.entries(shown?.failures ?? {});
  return (
    <section aria-label="Load">
      <div class="toolbar">
        <h2>Load</h2>
        <span class="space" />
        <Choice label="The last" value={window} options={WINDOWS} onChange={setWindow} />
      </div>
      <Problem error={series.error ?? metrics.error} />
      <div class="tiles">
        {tiles.map(([name, value]) => (
          <div class="tile" key={name}>
            <b>{value}</b>
            {name}
          </div>
        ))}
      </div>
      <p class="quiet">The figures above are of the server that answered; the charts of runs are of all that share its store.</p>
      {shown && !shown.complete && <p class="note">There were more runs than are looked at: the newest of them count.</p>}
      {shown && (
        <div class="charts">
          <Chart
            title="Load"
            times={shown.times}
            show={whole}
            lines={[
              { label: "running", values: shown.active, color: "--accent", fill: true },
              { label: "waiting", values: shown.queued, color: "--warn" },
            ]}
          />
          <Chart
            title="Throughput"
            times={shown.times}
            show={whole}
            lines={[
              { label: "ended", values: shown.ended, color: "--good", fill: true },
              { label: "not completed", values: shown.unsuccessful, color: "--bad" },
            ]}
          />
          <Chart title="Duration" times={shown.times} show={seconds} lines={percentiles(shown.duration_sec)} />
          <Chart title="Waiting time" times={shown.times} show={seconds} lines={percentiles(shown.wait_sec)} />
          <Chart
            title="Pool"
            times={pool.current.times}
            show={whole}
            lines={[
              { label: "boxes", values: pool.current.boxes, color: "--accent" },
              { label: "parked cells", values: pool.current.cells, color: "--good" },
            ]}
          />
          <UsageChart usage={shown.usage} />
        </div>
      )}
      <div class="columns">
        <section aria-label="Failures">
          <h2>Failures by reason</h2>
          {failures.length === 0 ? (
            <p class="quiet">None.</p>
          ) : (
            <table aria-label="Failures by reason">
              <tbody>
                {failures.map(([reason, many]) => (
                  <tr key={reason}>
                    <th scope="row">{reason}</th>
                    <td class="number">{many.toLocaleString("en")}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
        </section>
        <section aria-label="Use">
          <h2>By user and day</h2>
          {!shown?.usage.length ? (
            <p class="quiet">Nobody has run anything.</p>
          ) : (
            <div class="scroll" tabIndex={0} role="group" aria-label="Scrollable table of use">
              <table aria-label="Use by user and day">
                <thead>
                  <tr>
                    <th scope="col">Day</th>
                    <th scope="col">User</th>
                    <th scope="col" class="number">
                      Count
                    </th>
                    <th scope="col" class="number">
                      Processor time
                    </th>
                  </tr>
                </thead>
                <tbody>
                  {shown.usage.slice(0, 100).map((each) => (
                    <tr key={`${each.day} ${each.user_id}`}>
                      <td>{each.day}</td>
                      <td>
                        <Name>{each.user_id}</Name>
                      </td>
                      <td class="number">{each.runs.toLocaleString("en")}</td>
                      <td class="number">{seconds(each.cpu_time_sec)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
        </section>
      </div>
    </section>
  );
}

const percentiles = (found: Percentiles) => [
  { label: "p50", values: found.p50, color: "--good" },
  { label: "p95", values: found.p95, color: "--warn" },
  { label: "p99", values: found.p99, color: "--bad" },
];

const USER_COLORS = ["--accent", "--good", "--warn", "--bad", "--syntax-keyword"];

function UsageChart({ usage }: { usage: Series["usage"] }) {
  const days = [...new Set(usage.map((each) => each.day))].sort();
  const totals = new Map<string, number>();
  for (const each of usage) totals.set(each.user_id, (totals.get(each.user_id) ?? 0) + each.runs);
  const users = [...totals].sort((one, other) => other[1] - one[1]).slice(0, USER_COLORS.length);
  return (
    <Chart
      title="Use"
      daily
      times={days.map((day) => Date.parse(`${day}T00:00:00Z`) / 1000)}
      show={whole}
      lines={users.map(([user], at) => ({
        label: `runs of ${user}`,
        color: USER_COLORS[at]!,
        values: days.map((day) => usage.find((each) => each.day === day && each.user_id === user)?.runs ?? 0),
      }))}
    />
  );
}

function Runtimes({ server }: Pick<PageProps, "server">) {
  return (
    <section aria-label="Runtimes">
      <h2>Runtimes</h2>
      {server.runtimes.map((runtime) => {
        const missing = runtime.isolation.guarantees.filter((each) => !each.enforced);
        return (
          <details key={runtime.name} open={runtime.available}>
            <summary>
              <b>{runtime.name}</b> {runtime.version ?? ""}: {runtime.available ? "available" : "not available"}
              {runtime.available &&
                (missing.length ? `, ${count(missing.length, "guarantee")} missing` : ", every guarantee enforced")}
            </summary>
            {runtime.notes && <p class="note">{runtime.notes}</p>}
            {runtime.isolation.guarantees.length > 0 && (
              <div class="scroll" tabIndex={0} role="group" aria-label={`Scrollable table of guarantees of ${runtime.name}`}>
                <table aria-label={`Guarantees of ${runtime.name}`}>
                  <thead>
                    <tr>
                      <th scope="col">Guarantee</th>
                      <th scope="col">State</th>
                      <th scope="col">How, or what helps</th>
                    </tr>
                  </thead>
                  <tbody>
                    {runtime.isolation.guarantees.map((each) => (
                      <tr key={each.guarantee}>
                        <td>{each.guarantee}</td>
                        <td>
                          <span class={`guarantee ${each.enforced ? "held" : "missing"}`}>
                            {each.enforced ? "✓ enforced" : "✗ missing"}
                          </span>
                        </td>
                        <td class="long">{each.how}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            )}
            <dl>
              {Object.entries(runtime.isolation.facts).map(([name, value]) => (
                <div key={name}>
                  <dt>{name}</dt>
                  <dd>{value}</dd>
                </div>
              ))}
            </dl>
          </details>
        );
      })}
    </section>
  );
}

interface AuditEvent {
  ts: string;
  event: string;
  user_id?: string | null;
  outcome?: string | null;
  run_id?: string | null;
  [name: string]: unknown;
}

const AUDIT_PAGE = 50;
const SHOWN = ["ts", "event", "user_id", "outcome", "run_id"];

const details = (event: AuditEvent) =>
  Object.entries(event)
    .filter(([name, value]) => !SHOWN.includes(name) && value !== null && value !== "")
    .map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : String(value)}`)
    .join("\n");

function Audit() {
  const [filter, setFilter] = useState({ event: "", user_id: "", run_id: "", outcome: "" });
  const [offset, setOffset] = useState(0);
  const path = `${SERVICE}/admin/audit${query({ ...filter, limit: AUDIT_PAGE, offset })}`;
  const { value, stale, error, reload } = useAsked(
    (signal) => get<{ items: AuditEvent[]; has_more: boolean }>(path, signal),
    path,
  );
  const change = (part: Partial<typeof filter>) => {
    setOffset(0);
    setFilter({ ...filter, ...part });
  };
  const shown = value ?? stale;
  return (
    <section aria-label="Audit">
      <div class="toolbar">
        <h2>Audit log</h2>
        <button class="small" onClick={reload}>
          Refresh audit
        </button>
      </div>
      <form class="filters" role="search" aria-label="Audit" onSubmit={(event) => event.preventDefault()}>
        <Text label="Event" value={filter.event} onInput={(event) => change({ event: event.trim() })} placeholder="sandbox.run.created" />
        <Text label="User" value={filter.user_id} onInput={(user_id) => change({ user_id: user_id.trim() })} />
        <Text label="Run id" value={filter.run_id} onInput={(run_id) => change({ run_id: run_id.trim() })} />
        <Text label="Outcome" value={filter.outcome} onInput={(outcome) => change({ outcome: outcome.trim() })} />
      </form>
      <Problem error={error} />
      <div class="scroll" tabIndex={0} role="group" aria-label="Scrollable table of the audit log">
        <table aria-label="Audit log">
          <thead>
            <tr>
              <th scope="col">When</th>
              <th scope="col">Event</th>
              <th scope="col">User</th>
              <th scope="col">Outcome</th>
              <th scope="col">Run</th>
              <th scope="col">Details</th>
            </tr>
          </thead>
          <tbody>
            {shown?.items.map((each, at) => (
              <tr key={at}>
                <td title={each.ts}>{time(each.ts)}</td>
                <td>{each.event}</td>
                <td>
                  <Name>{each.user_id ?? ""}</Name>
                </td>
                <td>{each.outcome ?? ""}</td>
                <td>{each.run_id && <Link to={runPath(each.run_id)}>{each.run_id}</Link>}</td>
                <td class="long">
                  <details>
                    <summary>{String(each["surface"] ?? "More")}</summary>
                    <pre role="group" tabIndex={0} aria-label={`Details of ${each.event}`}>{details(each)}</pre>
                  </details>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {value && !value.items.length && <p class="quiet">Nothing like that is in the audit log.</p>}
      <div class="pages">
        <button disabled={!offset} onClick={() => setOffset(Math.max(0, offset - AUDIT_PAGE))}>
          Newer
        </button>
        <button disabled={!shown?.has_more} onClick={() => setOffset(offset + AUDIT_PAGE)}>
          Older
        </button>
      </div>
    </section>
  );
}
