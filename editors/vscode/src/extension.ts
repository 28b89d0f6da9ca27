// The extension: its parts, and what connects them.

import * as vscode from "vscode";
import { ApiKey } from "./apiKey";
import { Artifacts } from "./artifacts";
import * as commands from "./commands";
import { configure } from "./configure";
import { LanguageServer } from "./languageServer";
import { LogPanel } from "./logPanel";
import { CONFIGURE, OPEN_ARTIFACTS, RUN } from "./protocol";
import { Runs } from "./runs";
import { SECTION } from "./settings";
import { StatusBar } from "./statusBar";
import { TestExplorer } from "./testing/explorer";

// Another value of these means another process.
const OF_THE_PROCESS = ["command", "serverUrl", "apiKey"].map((name) => `${SECTION}.${name}`);

let stopping: (() => Promise<void>) | undefined;

export function activate(context: vscode.ExtensionContext): void {
  const apiKey = new ApiKey(context);
  const runs: Runs = new Runs(() => server);
  const server = new LanguageServer(apiKey, (client) => runs.connect(client));
  const log = new LogPanel();
  const status = new StatusBar();
  const artifacts = new Artifacts(() => server);
  for (const listener of [status, artifacts]) runs.watch(listener);

  const register = (name: string, action: (...given: unknown[]) => unknown): void => {
    context.subscriptions.push(vscode.commands.registerCommand(name, action));
  };
  register(RUN, (target) => commands.run(runs, log, target));
  register(CONFIGURE, (given) =>
    isObject(given) ? commands.told(log, () => server.execute(CONFIGURE, given)) : configure(),
  );
  register(OPEN_ARTIFACTS, (given) =>
    commands.told(log, () => artifacts.open(isObject(given) ? (given as { run_id?: string }).run_id : undefined)),
  );
  register(`${SECTION}.runAgain`, () => commands.runAgain(runs, log));
  register(`${SECTION}.showOutput`, () => log.show());
  register(`${SECTION}.setApiKey`, () => apiKey.ask());
  register(`${SECTION}.restart`, () => server.restart());
  register(`${SECTION}.saveArtifact`, (node) =>
    commands.told(log, () => artifacts.save(node as Parameters<Artifacts["save"]>[0])),
  );
  register(`${SECTION}.welcome`, () =>
    vscode.commands.executeCommand("workbench.action.openWalkthrough", `${context.extension.id}#start`),
  );

  context.subscriptions.push(
    server,
    log,
    status,
    artifacts,
    new TestExplorer(runs),
    vscode.workspace.onDidChangeConfiguration((change) => {
      if (OF_THE_PROCESS.some((name) => change.affectsConfiguration(name))) void server.restart();
      else if (change.affectsConfiguration(SECTION)) void server.configure();
      if (change.affectsConfiguration(`${SECTION}.apiKey`)) void apiKey.offerMove();
    }),
    vscode.workspace.onDidGrantWorkspaceTrust(() => void server.restart()),
    apiKey.onDidChange(() => void server.restart()),
  );
  stopping = () => server.stop();
  void server.start();
  void apiKey.offerMove();
}

export async function deactivate(): Promise<void> {
  await stopping?.();
}

function isObject(given: unknown): given is object {
  return typeof given === "object" && given !== null && Object.keys(given).length > 0;
}
