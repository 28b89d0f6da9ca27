// What is around every page: the navigation, and who is signed in.
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { forget } from "./credential";
import type { Me, Server } from "./model";
import { Wave } from "./pages/sign-in";
import { Heading, Problem } from "./parts/ui";
import { Link, useLocation } from "./router";
import { RunPage } from "./pages/run";
import { RunsPage } from "./pages/runs";
import { OneRunPage } from "./pages/one-run";

export interface PageProps {
  me: Me;
  server: Server;
  id: string;
}

/** A page that is loaded when it is opened for the first time. */
function later(load: () => Promise<ComponentType<PageProps>>) {
  let loaded: ComponentType<PageProps> | null = null;
  return function Later(props: PageProps) {
    const [Page, setPage] = useState(() => loaded);
    const [error, setError] = useState<unknown>(null);
    useEffect(() => {
      if (!Page) load().then((found) => setPage(() => (loaded = found)), setError);
    }, []);
    return Page ? <Page {...props} /> : <Problem error={error} />;
  };
}

const routes: [RegExp, ComponentType<PageProps>][] = [
  [/^$/, RunPage],
  [/^run$/, RunPage],
  [/^runs$/, RunsPage],
  [/^(?:sandbox\/)?runs\/([^/]+)$/, OneRunPage],
  [/^compare$/, later(async () => (await import("./pages/compare")).ComparePage)],
  [/^sandboxes$/, later(async () => (await import("./pages/sandboxes")).SandboxesPage)],
  [/^sandboxes\/([^/]+)$/, later(async () => (await import("./pages/one-sandbox")).OneSandboxPage)],
  [/^sessions\/([^/]+)$/, later(async () => (await import("./pages/one-session")).OneSessionPage)],
  [/^admin$/, later(async () => (await import("./pages/admin")).AdminPage)],
];

function NotFound() {
  return (
    <>
      <Heading title="Not found">Not found</Heading>
      <Problem error="There is no such page." />
    </>
  );
}

export function Shell({ me, server }: { me: Me; server: Server }) {
  const { path } = useLocation();
  const [open, setOpen] = useState(false);
  useEffect(() => setOpen(false), [path]);

  let Page: ComponentType<PageProps> = NotFound;
  let id = "";
  for (const [pattern, page] of routes) {
    const match = pattern.exec(path);
    if (match) {
      Page = page;
      id = decodeURIComponent(match[1] ?? "");
      break;
    }
  }
  const isIn = (...names: string[]) => names.includes(path.split("/")[0]!);

  return (
    <>
      <a class="skip" href="#content" onClick={skip}>
        Skip to content
      </a>
      <header>
        <span class="brand">
          <Wave /> Tidebox
        </span>
        <button class="menu" aria-expanded={open} aria-controls="navigation" onClick={() => setOpen(!open)}>
          Menu
        </button>
        <nav id="navigation" class={open ? "open" : ""} aria-label="Main">
          <Link to="" current={isIn("", "run")}>
            Run
          </Link>
          <Link to="runs" current={isIn("runs", "sandbox", "compare")}>
            Runs
          </Link>
          <Link to="sandboxes" current={isIn("sandboxes", "sessions")}>
            Sandboxes
          </Link>
          {me.admin && (
            <Link to="admin" current={isIn("admin")}>
              Admin
            </Link>
          )}
          <span class="who">
            <bdi>{me.user_id}</bdi>
          </span>
          <button onClick={() => forget()}>Sign out</button>
        </nav>
      </header>
      <main id="content" tabIndex={-1}>
        <Page key={path} me={me} server={server} id={id} />
      </main>
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}
