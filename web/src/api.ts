// The server's REST surfaces. Whoever is signed in is known by a header: there is no cookie.
import { credential, forget } from "./credential";

export const SERVICE = "/api/v1/sandbox";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly requestId: string | null = null,
    readonly retryAfter: number | null = null,
  ) {
    super(message);
  }
}

export interface Options {
  body?: unknown;
  /** Sent as it is, with its type. */
  raw?: BodyInit;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** Another credential than that of the tab: the token of a sandbox. */
  token?: string;
}

/** Ask the server; raises `ApiError` for a refusal, also where nobody answers. */
export async function request(method: string, path: string, options: Options = {}): Promise<Response> {
  const token = options.token ?? credential();
  const headers: Record<string, string> = { "X-Tidebox-Source": "Web", ...options.headers };
  if (token) headers["Authorization"] = `Bearer ${token}`;
  let body = options.raw;
  if (options.body !== undefined) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(options.body);
  }
  let response: Response;
  try {
    response = await fetch(path, { method, headers, body, signal: options.signal, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
  if (response.ok) return response;
  const refusal = await refusalOf(response);
  if (response.status === 401 && options.token === undefined) forget(refusal.message);
  throw refusal;
}

async function refusalOf(response: Response): Promise<ApiError> {
  const retry = Number(response.headers.get("Retry-After"));
  const after = Number.isFinite(retry) && retry > 0 ? retry : null;
  try {
    const { error } = await response.json();
    return new ApiError(response.status, error.code, sentence(error), error.request_id, after);
  } catch {
    return new ApiError(response.status, "unknown", `The server answered with status ${response.status}.`, null, after);
  }
}

function sentence(error: { message: string; details?: Record<string, unknown> }): string {
  const problems = error.details?.["errors"];
  if (!Array.isArray(problems)) return error.message;
  const told = problems.map((each) => `${(each.loc ?? each.field ?? []).toString()}: ${each.msg ?? each.message ?? ""}`);
  return [error.message, ...told].join("; ");
}

export async function ask<T>(method: string, path: string, options: Options = {}): Promise<T> {
  const response = await request(method, path, options);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

export const get = <T>(path: string, signal?: AbortSignal) => ask<T>("GET", path, { signal });
export const post = <T>(path: string, body: unknown, headers?: Record<string, string>) =>
  ask<T>("POST", path, { body, headers });

/** A path segment, or a path of several. */
export const encoded = (path: string) => path.split("/").map(encodeURIComponent).join("/");

export function query(values: Record<string, string | number | boolean | null | undefined>): string {
  const found = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return found.length ? `?${new URLSearchParams(found.map(([name, value]) => [name, String(value)]))}` : "";
}

/** A socket of this server, at a path that the server named. */
export function openSocket(path: string): WebSocket {
  const url = new URL(path, location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  return new WebSocket(url);
}

export function randomId(): string {
  // `crypto.randomUUID` is there only where a page came by https or from this machine.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
