// The language server: found, started with the settings, and asked.

import * as vscode from "vscode";
import {
  ClientCapabilities,
  DidChangeConfigurationNotification,
  DynamicFeature,
  ErrorCodes,
  ExecuteCommandRequest,
  LanguageClient,
  LanguageClientOptions,
  ResponseError,
  RevealOutputChannelOn,
  StaticFeature,
  WorkDoneProgress,
} from "vscode-languageclient/node";
import type { ApiKey } from "./apiKey";
import { findServer } from "./finding";
import { readOutput, Stream } from "./protocol";
import { defaults, SECTION, serverSettings } from "./settings";

const INSTALL = "pip install tidebox";
const READY = `${SECTION}.ready`;

/** The user was told already. */
export class SandboxError extends Error {}

class NotInstalled extends Error {
  override message = "Tidebox is not installed.";
}

/** How a request is followed while it lasts. */
export interface Following {
  cancel?: vscode.CancellationToken | undefined;
  /** Names its progress, which `report` gets. */
  token?: string;
  report?: ((message: string) => void) | undefined;
}

/** A client that leaves the server's commands to the extension: they are in the palette before a server runs, and know
 * which document is meant. */
class Client extends LanguageClient {
  override registerFeature(feature: StaticFeature | DynamicFeature<unknown>): void {
    if ("registrationType" in feature && feature.registrationType.method === ExecuteCommandRequest.method) return;
    super.registerFeature(feature);
  }

  override fillInitializeParams(parameters: Parameters<LanguageClient["fillInitializeParams"]>[0]): void {
    super.fillInitializeParams(parameters);
    const capabilities: ClientCapabilities = parameters.capabilities;
    capabilities.experimental = { ...(capabilities.experimental as object | undefined), tidebox: true };
    // Artifacts have a view of their own: the server need not open a list of them.
    delete capabilities.window?.showDocument;
  }
}

export class LanguageServer implements vscode.Disposable {
  private client: Promise<LanguageClient> | undefined;
  private readonly channel = vscode.window.createOutputChannel("Sandbox Language Server");

  /** `connect` is told of every client before it starts, to hear its notifications. */
  constructor(
    private readonly apiKey: ApiKey,
    private readonly connect: (client: LanguageClient) => void,
  ) {}

  /** Start the server if it does not run; where that is not possible the user is told. */
  async start(): Promise<void> {
    await this.running().catch(() => undefined);
  }

  async restart(): Promise<void> {
    await this.stop();
    await this.start();
  }

  /** Tell a running server about changed settings. */
  async configure(): Promise<void> {
    const client = await this.client?.catch(() => undefined);
    await client?.sendNotification(DidChangeConfigurationNotification.type, { settings: { tidebox: defaults() } });
  }

  /** Have the server carry out one of its commands. */
  async execute<Answer>(command: string, argument: object, following: Following = {}): Promise<Answer> {
    const client = await this.running();
    const { cancel, token, report } = following;
    const progress =
      token && report && client.onProgress(WorkDoneProgress.type, token, (step) => step.message && report(step.message));
    try {
      const parameters = { command, arguments: [argument], ...(token && { workDoneToken: token }) };
      return (await client.sendRequest(ExecuteCommandRequest.type, parameters, cancel)) as Answer;
    } catch (error) {
      const lost = error instanceof ResponseError && error.code === ErrorCodes.PendingResponseRejected;
      throw lost ? new Error("The language server ended before the answer came.") : error;
    } finally {
      if (progress) progress.dispose();
    }
  }

  /** All that a run printed to a stream, also what was too much to be told while it ran. */
  async readOutput(run_id: string, stream: Stream): Promise<string> {
    const client = await this.running();
    return (await client.sendRequest(readOutput, { run_id, stream })).text;
  }

  /** The client of a server that runs, started if need be. Where that is not possible the user is told. */
  private async running(): Promise<LanguageClient> {
    const starting = (this.client ??= this.launch());
    try {
      const client = await starting;
      await vscode.commands.executeCommand("setContext", READY, true);
      return client;
    } catch (error) {
      if (this.client === starting) this.client = undefined;
      await vscode.commands.executeCommand("setContext", READY, false);
      void (error instanceof NotInstalled ? tellHowToInstall() : this.tellFailure());
      throw new SandboxError(messageOf(error));
    }
  }

  private async tellFailure(): Promise<void> {
    const show = "Show Log";
    const choice = await vscode.window.showErrorMessage("The sandbox's language server did not start.", show);
    if (choice === show) this.channel.show();
  }

  async stop(): Promise<void> {
    const stopping = this.client;
    this.client = undefined;
    const client = await stopping?.catch(() => undefined);
    if (client?.needsStop()) await client.stop().catch(() => undefined);
    await client?.dispose().catch(() => undefined);
  }

  dispose(): void {
    void this.stop();
    this.channel.dispose();
  }

  private async launch(): Promise<LanguageClient> {
    const { command, serverUrl } = serverSettings();
    const folders = vscode.workspace.isTrusted
      ? (vscode.workspace.workspaceFolders ?? []).filter((folder) => folder.uri.scheme === "file")
      : [];
    const found = await findServer(command, folders.map((folder) => folder.uri.fsPath));
    if (!found) throw new NotInstalled();
    const [program, ...rest] = found as [string, ...string[]];
    const key = await this.apiKey.get();
    const server = {
      command: program,
      args: rest,
      options: { env: { ...process.env, ...environment(serverUrl, key) } },
    };
    const options: LanguageClientOptions = {
      // All of them: what a program reads is as the editor shows it too, whatever language that is.
      documentSelector: [{ scheme: "file" }, { scheme: "untitled" }],
      initializationOptions: defaults(),
      outputChannel: this.channel,
      revealOutputChannelOn: RevealOutputChannelOn.Never,
    };
    const client = new Client("tidebox", "Sandbox Language Server", server, options);
    this.connect(client);
    await client.start();
    return client;
  }
}

/** What the server is told by its environment: arguments are seen by every user of the machine. */
function environment(serverUrl: string, key: string | undefined): Record<string, string> {
  return serverUrl ? { TIDEBOX_URL: serverUrl, ...(key && { TIDEBOX_API_KEY: key }) } : {};
}

/** The words of an error. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

async function tellHowToInstall(): Promise<void> {
  const configured = serverSettings().command.join(" ");
  const copy = "Copy Install Command";
  const guide = "Get Started";
  const settings = "Open Settings";
  const choice = await vscode.window.showWarningMessage(
    configured
      ? `There is no program "${configured}", which ${SECTION}.command names.`
      : `Tidebox is not installed: type "${INSTALL}" in a terminal, or name the program in the settings.`,
    ...(configured ? [settings, guide] : [copy, guide, settings]),
  );
  if (choice === copy) await vscode.env.clipboard.writeText(INSTALL);
  if (choice === guide) await vscode.commands.executeCommand(`${SECTION}.welcome`);
  if (choice === settings) await vscode.commands.executeCommand("workbench.action.openSettings", `${SECTION}.command`);
}
