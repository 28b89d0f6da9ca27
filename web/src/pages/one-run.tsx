import { useEffect, useState } from "preact/hooks";
import { ApiError, get, post, randomId, SERVICE } from "../api";
import { asCli, asCurl, asPython, asRunSpec, copyText } from "../copies";
import { codeOf } from "../languages";
import { isOver, type Phase, type Run, type RunSpec } from "../model";
import { Artifacts } from "../parts/artifacts";
import { Log } from "../parts/log";
import { Heading, Meter, Name, Problem, useEvery } from "../parts/ui";
import { reasonOf } from "../reasons";
import { Link, navigate, runPath, sessionPath } from "../router";
import type { PageProps } from "../shell";
import { keepDraft, keepSpec, specOf } from "../specs";
import { bytes, seconds, time } from "../text";

const NO_SPEC =
  "The server keeps no code: only the tab that started a run can copy it or run it again, and this is not that tab.";

const isAway = (error: unknown) => error instanceof ApiError && error.status === 0;

export function OneRunPage({ id, server }: PageProps) {
  const path = `${SERVICE}/runs/${encodeURIComponent(id)}`;
  const [run, setRun] = useState<Run | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [told, setTold] = useState<string | null>(null);
  const spec = specOf(id);
  // Also where another tab started it; and still after its input was closed, to say so.
  const [takesInput, setTakesInput] = useState(spec?.interactive ?? false);

  const load = () =>
    get<Run>(path).then((found) => {
      setRun(found);
      setError((before: unknown) => (isAway(before) ? null : before));
      if (found.takes_input) setTakesInput(true);
    }, setError);
  useEffect(() => {
    void load();
  }, [path]);
  // The stream tells of the end; this is for a stream that cannot be had.
  useEvery(10_000, () => void load(), run !== null && !isOver(run.phase));
  useEvery(2000, () => void load(), isAway(error));
  const [, tick] = useState(0);
  useEvery(1000, () => tick((count) => count + 1), run !== null && !isOver(run.phase));

  const attempt = async (act: () => Promise<unknown>) => {
    setError(null);
    try {
      await act();
    } catch (refusal) {
      setError(refusal);
    }
  };
  const copy = (name: string, render: (spec: RunSpec) => string) =>
    attempt(async () => {
      if (!spec) throw new Error(NO_SPEC);
      await copyText(render(spec));
      setTold(`Copied as ${name}.`);
    });
  const again = () =>
    attempt(async () => {
      if (!spec) throw new Error(NO_SPEC);
      const started = await post<Run>(`${SERVICE}/runs`, spec, { "Idempotency-Key": randomId() });
      keepSpec(started.run_id, spec);
      navigate(runPath(started.run_id));
    });
  const edit = () => {
    if (!spec) return setError(new Error(NO_SPEC));
    keepDraft(spec);
    navigate("");
  };

  if (!run) {
    return (
      <>
        <Heading title="Run">
          Run <Name>{id}</Name>
        </Heading>
        <Problem error={error} />
      </>
    );
  }
  const over = isOver(run.phase);
  const program = spec && codeOf(spec);
  return (
    <>
      <Heading title={`Run ${id}`}>
        Run <Name>{id}</Name>
      </Heading>
      <div class="headline">
        <p role="status" aria-label="Status" class={`status ${run.phase}`}>
          <span class="phase">{run.phase}</span>
          {run.exit_code !== null && (
            <>
              <span class="unseen">, </span>
              <span>exit code {run.exit_code}</span>
            </>
          )}
        </p>
        <span class="quiet">{elapsed(run)}</span>
        <span class="space" />
        {!over && (
          <button class="danger" onClick={() => void attempt(async () => setRun({ ...run, ...(await post<Run>(`${path}/cancel`, {})) }))}>
            Cancel
          </button>
        )}
        <button onClick={() => void again()}>Run again</button>
        <button onClick={edit}>Edit</button>
        <Link to={`compare?a=${encodeURIComponent(id)}`} class="button">
          Compare
        </Link>
      </div>
      <p class="reason">{reasonOf(run)}</p>
      <Problem error={error} />
      <Log
        key={id}
        runId={id}
        interactive={takesInput}
        onPhase={(phase: Phase) => setRun((before) => before && (isOver(before.phase) ? before : { ...before, phase }))}
        onEnd={() => void load()}
      />
      <Artifacts runId={id} over={over} />
      <div class="columns">
        <section aria-label="Usage">
          <h2>Usage</h2>
          <UsageMeters run={run} logCap={server.runtimes.find((each) => each.name === run.runtime)?.max_log_bytes ?? 0} />
        </section>
        <section aria-label="Details">
          <h2>Details</h2>
          <Facts run={run} />
        </section>
      </div>
      <section aria-label="Copy">
        <h2>Copy</h2>
        <div class="buttons">
          <button onClick={() => void copy("curl", asCurl)}>Copy as curl</button>
          <button onClick={() => void copy("Python", asPython)}>Copy as Python</button>
          <button onClick={() => void copy("a command", asCli)}>Copy as CLI</button>
          <button onClick={() => void copy("run spec", asRunSpec)}>Copy as run spec</button>
          <button
            onClick={() =>
              void attempt(async () => {
                await copyText(location.href);
                setTold("Copied the link. Whoever opens it needs a key that may see this run.");
              })
            }
          >
            Copy link
          </button>
        </div>
        <p class="quiet" aria-live="polite">
          {spec ? told : NO_SPEC}
        </p>
        {program && (
          <details>
            <summary>Program ({program.language})</summary>
            <pre role="group" tabIndex={0} aria-label="Program">{program.code}</pre>
          </details>
        )}
      </section>
    </>
  );
}

function elapsed(run: Run): string {
  if (!run.started_at) return `made ${time(run.created_at)}`;
  const end = run.finished_at ? Date.parse(run.finished_at) : Date.now();
  return `${time(run.started_at)}, ${seconds(Math.max(0, (end - Date.parse(run.started_at)) / 1000))}`;
}

export function UsageMeters({ run, logCap }: { run: Run; logCap: number }) {
  const used = run.resource_usage;
  const limits = used.limits;
  const mebibytes = (value: number) => bytes(value * 1024 * 1024);
  const plain = (value: number) => String(value);
  const budget = (limits.timeout_sec ?? 0) * (limits.cpu ?? 1);
  return (
    <div class="meters">
      <Meter label="Memory" value={used.peak_rss_mb ?? 0} limit={limits.memory_mb ?? 0} show={mebibytes} />
      <Meter label="Time" value={used.wall_time_sec ?? 0} limit={limits.timeout_sec ?? 0} show={seconds} />
      <Meter label="Processor time" value={used.cpu_time_sec ?? 0} limit={budget} show={seconds} />
      <Meter label="Processes" value={used.pids ?? 0} limit={limits.pids ?? 0} show={plain} />
      {logCap > 0 && <Meter label="Output" value={used.log_bytes ?? 0} limit={logCap} show={bytes} />}
      {!isOver(run.phase) && <p class="quiet">What it used is counted when it is over.</p>}
    </div>
  );
}

function Facts({ run }: { run: Run }) {
  const facts: [string, preact.ComponentChildren][] = [
    ["Runtime", run.runtime],
    ["Image", <Name>{run.base_image}</Name>],
    ["Network", run.network_policy],
    ["Trust", run.trust_level ?? "–"],
    ["Made", time(run.created_at)],
    ["Ended", time(run.finished_at)],
  ];
  if (run.session_id) facts.push(["Session", <Link to={sessionPath(run.session_id)}>{run.session_id}</Link>]);
  for (const [name, value] of Object.entries(run.labels)) {
    facts.push(["Label", <><Name>{name}</Name> = <Name>{value}</Name></>]);
  }
  const left = Object.entries(run.resource_usage.files_left_out ?? {});
  if (left.length) facts.push(["Files left out", left.map(([why, many]) => `${many} (${why})`).join(", ")]);
  return (
    <dl>
      {facts.map(([name, value], at) => (
        <div key={at}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
