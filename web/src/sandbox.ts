// A sandbox and its dataplane. Its token is good for some minutes, and got anew when it is over.
import { ApiError, ask, get, type Options, request } from "./api";

export interface Binding {
  id: string;
  scope: { type: string; id: string };
  sandbox_id: string | null;
  provider: string;
  state: string;
  lease_expires_at: string;
  expires_at: string;
  created_at: string;
  idle_seconds: number;
}

interface Access {
  session_id: string;
  binding: Binding;
  dataplane: { http_base_url: string };
  token: string;
  expires_at: string;
  credentials: { granted_capabilities: string[] };
  recreated: boolean;
}

export const SESSIONS = "/v1/sandbox/sessions";
const EARLY_MS = 30_000;
const STARTING = 423;

export interface Entry {
  name: string;
  path: string;
  type: "file" | "directory" | "symlink" | "other";
  size: number;
  mode: number;
  modified_at: string | null;
}

export interface Executed {
  exit_code: number;
  stdout: string;
  stderr: string;
}

const pause = (seconds: number) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

/** Get access to the sandbox of a scope, which is made where there is none. */
export async function ensure(scope: Binding["scope"], extra: object = {}): Promise<Sandbox> {
  for (;;) {
    try {
      return new Sandbox(await ask<Access>("POST", SESSIONS, { body: { scope, mode: "ensure", ...extra } }));
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== STARTING) throw error;
      await pause(error.retryAfter ?? 1);
    }
  }
}

export async function open(bindingId: string): Promise<Sandbox> {
  const found = await get<{ binding: Binding }>(`${SESSIONS}/${encodeURIComponent(bindingId)}`);
  return ensure(found.binding.scope);
}

export class Sandbox {
  constructor(private access: Access) {}

  get binding(): Binding {
    return this.access.binding;
  }

  get recreated(): boolean {
    return this.access.recreated;
  }

  may(capability: string): boolean {
    return this.access.credentials.granted_capabilities.includes(capability);
  }

  /** Whether it is used at another server, where pages of this one may not ask. */
  get elsewhere(): string | null {
    const { origin } = new URL(this.access.dataplane.http_base_url);
    return this.binding.provider !== "local" && origin !== location.origin ? origin : null;
  }

  async token(): Promise<string> {
    if (Date.parse(this.access.expires_at) - EARLY_MS < Date.now()) {
      const path = `${SESSIONS}/${encodeURIComponent(this.binding.id)}/refresh-token`;
      const renewed = await ask<Pick<Access, "token" | "expires_at">>("POST", path, { body: {} });
      this.access = { ...this.access, token: renewed.token, expires_at: renewed.expires_at };
    }
    return this.access.token;
  }

  async request(method: string, path: string, options: Options = {}): Promise<Response> {
    return request(method, `/v1/${path}`, { ...options, token: await this.token() });
  }

  async ask<T>(method: string, path: string, options: Options = {}): Promise<T> {
    return (await (await this.request(method, path, options)).json()) as T;
  }

  list(path: string): Promise<{ entries: Entry[] }> {
    return this.ask("GET", `files/list?path=${encodeURIComponent(path)}`);
  }

  exec(command: string[]): Promise<Executed> {
    return this.ask("POST", "exec", { body: { command, timeout_ms: 10_000 } });
  }
}
