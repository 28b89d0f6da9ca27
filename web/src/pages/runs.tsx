import { useState } from "preact/hooks";
import { get, post, query, SERVICE } from "../api";
import { asCurl } from "../copies";
import { isOver, type Page, PHASES, type Run } from "../model";
import { Choice, Heading, Name, Problem, Snippet, Text, useAsked, useEvery } from "../parts/ui";
import { Link, navigate, runPath, useLocation } from "../router";
import type { PageProps } from "../shell";
import { count, seconds, time } from "../text";

const PAGE = 50;
const FILTERS = ["phase", "runtime", "base_image", "user_id", "label", "q", "started_at_from", "started_at_to"] as const;
const CANCELLED_AT_ONCE = 4;

export function RunsPage({ me, server }: PageProps) {
  const { search } = useLocation();
  const values = Object.fromEntries(FILTERS.map((name) => [name, search.get(name) ?? ""]));
  const offset = Math.max(0, Number(search.get("offset")) || 0);
  const [live, setLive] = useState(true);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [problem, setProblem] = useState<unknown>(null);

  const asked = query({
    ...values,
    started_at_from: instant(values["started_at_from"]!),
    started_at_to: instant(values["started_at_to"]!),
    sort: me.admin ? "created_at:desc" : "",
    limit: PAGE,
    offset,
  });
  const path = `${SERVICE}/${me.admin ? "admin/runs" : "runs"}${asked}`;
  const { value: page, stale, error, reload } = useAsked((signal) => get<Page<Run>>(path, signal), path);
  useEvery(2000, reload, live);

  const change = (changes: Record<string, string>) =>
    navigate(`runs${query({ ...values, offset: "", ...changes })}`, true);
  const shown = page ?? stale;
  const runs = shown?.items ?? [];
  const filtered = FILTERS.some((name) => values[name]);
  const selectable = runs.filter((run) => !isOver(run.phase)).map((run) => run.run_id);
  const selected = selectable.filter((id) => chosen.has(id));

  const toggle = (id: string) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  const cancel = async () => {
    setProblem(null);
    const left = [...selected];
    const work = async () => {
      for (let id = left.pop(); id; id = left.pop()) {
        await post(`${SERVICE}/runs/${encodeURIComponent(id)}/cancel`, {}).catch(setProblem);
      }
    };
    await Promise.all(Array.from({ length: CANCELLED_AT_ONCE }, work));
    setChosen(new Set());
    reload();
  };

  return (
    <>
      <Heading title="Runs">Runs</Heading>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <Choice
          label="Phase"
          value={values["phase"]!}
          options={[["", "any"], ...PHASES]}
          onChange={(phase) => change({ phase })}
        />
        <Choice
          label="Runtime"
          value={values["runtime"]!}
          options={[["", "any"], ...server.runtimes.map((each) => each.name)]}
          onChange={(runtime) => change({ runtime })}
        />
        <Text label="Image" value={values["base_image"]!} onInput={(base_image) => change({ base_image })} />
        {me.admin && <Text label="User" value={values["user_id"]!} onInput={(user_id) => change({ user_id })} />}
        <Text label="Label" value={values["label"]!} onInput={(label) => change({ label })} placeholder="name=value" />
        <Text label="Search" value={values["q"]!} onInput={(q) => change({ q })} placeholder="image or message" />
        <Text
          label="From"
          type="datetime-local"
          value={values["started_at_from"]!}
          onInput={(started_at_from) => change({ started_at_from })}
        />
        <Text
          label="To"
          type="datetime-local"
          value={values["started_at_to"]!}
          onInput={(started_at_to) => change({ started_at_to })}
        />
      </form>
      <div class="toolbar">
        <span class="quiet" aria-live="polite">
          {shown ? count(shown.total, "run") : ""}
        </span>
        <span class="space" />
        <label class="toggle">
          <input type="checkbox" checked={live} onChange={(event) => setLive((event.target as HTMLInputElement).checked)} /> Live
        </label>
        <button class="danger" disabled={!selected.length} onClick={() => void cancel()}>
          Cancel selected
        </button>
      </div>
      <Problem error={problem ?? error} />
      <div class="scroll" tabIndex={0} role="group" aria-label="Scrollable table of runs">
        <table aria-label="Runs">
          <thead>
            <tr>
              <th scope="col">
                <input
                  type="checkbox"
                  aria-label="Select all that go on"
                  disabled={!selectable.length}
                  checked={selectable.length > 0 && selected.length === selectable.length}
                  onChange={(event) =>
                    setChosen(new Set((event.target as HTMLInputElement).checked ? selectable : []))
                  }
                />
              </th>
              <th scope="col">Run</th>
              <th scope="col">Phase</th>
              <th scope="col">Exit code</th>
              <th scope="col">Reason</th>
              <th scope="col">Runtime</th>
              <th scope="col">Image</th>
              {me.admin && <th scope="col">User</th>}
              <th scope="col">Made</th>
              <th scope="col">Took</th>
            </tr>
          </thead>
          <tbody>
            {runs.map((run) => (
              <tr key={run.run_id}>
                <td>
                  <input
                    type="checkbox"
                    aria-label={`Select ${run.run_id}`}
                    disabled={isOver(run.phase)}
                    checked={chosen.has(run.run_id)}
                    onChange={() => toggle(run.run_id)}
                  />
                </td>
                <td>
                  <Link to={runPath(run.run_id)}>{run.run_id}</Link>
                </td>
                <td>
                  <span class={`phase ${run.phase}`}>{run.phase}</span>
                </td>
                <td>{run.exit_code ?? ""}</td>
                <td title={run.message ?? undefined}>{run.reason_code ?? ""}</td>
                <td>{run.runtime}</td>
                <td>
                  <Name>{run.base_image}</Name>
                </td>
                {me.admin && (
                  <td>
                    <Name>{run.user_id ?? ""}</Name>
                  </td>
                )}
                <td title={run.created_at}>{time(run.created_at)}</td>
                <td>
                  {run.started_at && run.finished_at
                    ? seconds((Date.parse(run.finished_at) - Date.parse(run.started_at)) / 1000)
                    : ""}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {shown && shown.total > PAGE && (
        <nav class="pages" aria-label="Pages">
          <button disabled={!offset} onClick={() => change({ offset: "" })}>
            First
          </button>
          <button disabled={!offset} onClick={() => change({ offset: String(Math.max(0, offset - PAGE)) })}>
            Newer
          </button>
          <span>
            {(offset + 1).toLocaleString("en")} to {Math.min(offset + PAGE, shown.total).toLocaleString("en")} of{" "}
            {shown.total.toLocaleString("en")}
          </span>
          <button disabled={offset + PAGE >= shown.total} onClick={() => change({ offset: String(offset + PAGE) })}>
            Older
          </button>
          <button
            disabled={offset + PAGE >= shown.total}
            onClick={() => change({ offset: String(Math.floor((shown.total - 1) / PAGE) * PAGE) })}
          >
            Last
          </button>
        </nav>
      )}
      {page && !page.total && (filtered ? <p class="quiet">No run is like that.</p> : <FirstRun />)}
    </>
  );
}

function FirstRun() {
  return (
    <div class="empty">
      <p>
        There are no runs yet. <Link to="">Start one here</Link>, or from a shell:
      </p>
      <Snippet label="Command that makes a run">
        {asCurl({ spec_version: "1.1", base_image: "host", command: ["python", "-c", "print(6 * 7)"] })}
      </Snippet>
    </div>
  );
}

/** What a field for local time holds, as the server reads it. */
function instant(local: string): string {
  const date = new Date(local);
  return local && !Number.isNaN(date.getTime()) ? date.toISOString() : "";
}
