import { useEffect, useState } from "preact/hooks";
import { get, query, request, SERVICE } from "../api";
import { codeOf } from "../languages";
import { stripped } from "../log/ansi";
import type { Page, Run } from "../model";
import { Choice, Heading, Problem } from "../parts/ui";
import { reasonOf } from "../reasons";
import { Link, navigate, runPath, useLocation } from "../router";
import type { PageProps } from "../shell";
import { specOf } from "../specs";
import { bytes, seconds, time } from "../text";
import { alignLines, type Pair } from "../align";

const MOST_BYTES = 256 * 1024;

interface Half {
  run: Run;
  output: string;
  cut: boolean;
  code: string | null;
}

async function load(id: string): Promise<Half> {
  const path = `${SERVICE}/runs/${encodeURIComponent(id)}`;
  const run = await get<Run>(path);
  const size = run.resource_usage.log_bytes ?? 0;
  const range = size > MOST_BYTES ? { headers: { Range: `bytes=0-${MOST_BYTES - 1}` } } : {};
  const output = await (await request("GET", `${path}/logs`, range)).text();
  const spec = specOf(id);
  return { run, output: stripped(output), cut: size > MOST_BYTES, code: (spec && codeOf(spec)?.code) ?? null };
}

export function ComparePage(_: PageProps) {
  const { search } = useLocation();
  const one = search.get("a") ?? "";
  const other = search.get("b") ?? "";
  const [halves, setHalves] = useState<[Half, Half] | null>(null);
  const [recent, setRecent] = useState<Run[]>([]);
  const [error, setError] = useState<unknown>(null);

  useEffect(() => {
    get<Page<Run>>(`${SERVICE}/runs?limit=100`).then((page) => setRecent(page.items), setError);
  }, []);
  useEffect(() => {
    setHalves(null);
    setError(null);
    if (one && other) Promise.all([load(one), load(other)]).then(setHalves, setError);
  }, [one, other]);

  const options = (chosen: string): [string, string][] => {
    const known = recent.map((run): [string, string] => [run.run_id, `${run.run_id} (${run.phase}, ${time(run.created_at)})`]);
    const missing: [string, string][] = chosen && !recent.some((run) => run.run_id === chosen) ? [[chosen, chosen]] : [];
    return [["", "choose a run"], ...missing, ...known];
  };
  const choose = (a: string, b: string) => navigate(`compare${query({ a, b })}`, true);
  return (
    <>
      <Heading title="Compare">Compare two runs</Heading>
      <div class="filters">
        <Choice label="First run" value={one} options={options(one)} onChange={(id) => choose(id, other)} />
        <Choice label="Second run" value={other} options={options(other)} onChange={(id) => choose(one, id)} />
      </div>
      <Problem error={error} />
      {halves && <Comparison halves={halves} />}
    </>
  );
}

function Comparison({ halves }: { halves: [Half, Half] }) {
  const [a, b] = halves;
  const facts: [string, (run: Run) => string][] = [
    ["Phase", (run) => run.phase],
    ["Exit code", (run) => String(run.exit_code ?? "–")],
    ["Reason", reasonOf],
    ["Image", (run) => run.base_image],
    ["Runtime", (run) => run.runtime],
    ["Wall time", (run) => seconds(run.resource_usage.wall_time_sec ?? 0)],
    ["Processor time", (run) => seconds(run.resource_usage.cpu_time_sec ?? 0)],
    ["Memory", (run) => bytes((run.resource_usage.peak_rss_mb ?? 0) * 1024 * 1024)],
    ["Output", (run) => bytes(run.resource_usage.log_bytes ?? 0)],
    ["Policy", (run) => run.policy_hash.slice(0, 12)],
  ];
  return (
    <>
      <div class="scroll" tabIndex={0} role="group" aria-label="Scrollable table of facts">
        <table aria-label="Facts">
          <thead>
            <tr>
              <th scope="col">
                <span class="unseen">Fact</span>
              </th>
              {halves.map(({ run }) => (
                <th key={run.run_id} scope="col">
                  <Link to={runPath(run.run_id)}>{run.run_id}</Link>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {facts.map(([name, fact]) => (
              <tr key={name} class={fact(a.run) === fact(b.run) ? "" : "differs"}>
                <th scope="row">{name}</th>
                <td class="long">{fact(a.run)}</td>
                <td class="long">{fact(b.run)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {a.code !== null && b.code !== null && <Texts title="Programs" pairs={alignLines(a.code, b.code)} halves={halves} />}
      <Texts title="Outputs" pairs={alignLines(a.output, b.output)} halves={halves} />
      {(a.cut || b.cut) && <p class="note">Of the outputs the first {bytes(MOST_BYTES)} are compared.</p>}
    </>
  );
}

function Texts({ title, pairs, halves }: { title: string; pairs: Pair[]; halves: [Half, Half] }) {
  const differ = pairs.filter((pair) => pair.left !== pair.right).length;
  return (
    <section aria-label={title}>
      <h2>
        {title} <span class="quiet">{differ ? `${differ} lines differ` : "no difference"}</span>
      </h2>
      <div class="side-by-side">
        {(["left", "right"] as const).map((side, index) => (
          <pre key={side} role="group" tabIndex={0} aria-label={`${title}: ${halves[index]!.run.run_id}`}>
            {pairs.map((pair, at) => (
              <span key={at} class={pair.left === pair.right ? "" : "differs"}>
                {pair[side] ?? ""}
              </span>
            ))}
          </pre>
        ))}
      </div>
    </section>
  );
}
