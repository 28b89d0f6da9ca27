// The API key: in the secret store, or in the settings, from where it is offered to be moved.

import * as vscode from "vscode";
import { SECTION, serverSettings } from "./settings";

const MOVE = "Move to Secret Store";
const NEVER = "Don't Ask Again";
const DECLINED = "apiKey.declined";

export class ApiKey {
  constructor(private readonly context: vscode.ExtensionContext) {}

  /** Fires when somebody stored or removed a key. */
  readonly onDidChange: vscode.Event<unknown> = (listener, self, disposables) =>
    this.context.secrets.onDidChange(listener, self, disposables);

  /** The key for the server of the settings; nothing where there is none. */
  async get(): Promise<string | undefined> {
    const { apiKey, serverUrl } = serverSettings();
    if (!serverUrl) return undefined;
    return apiKey || (await this.context.secrets.get(name(serverUrl)));
  }

  /** Ask for a key and keep it in the secret store. */
  async ask(): Promise<void> {
    const { serverUrl } = serverSettings();
    if (!serverUrl) {
      const choice = await vscode.window.showInformationMessage(
        "Without a server no API key is needed. Name the server first.",
        "Open Settings",
      );
      if (choice) await vscode.commands.executeCommand("workbench.action.openSettings", `${SECTION}.serverUrl`);
      return;
    }
    const key = await vscode.window.showInputBox({
      title: "API Key",
      prompt: `The API key of ${serverUrl}. Empty removes it.`,
      password: true,
      ignoreFocusOut: true,
    });
    if (key === undefined) return;
    if (key.trim()) await this.context.secrets.store(name(serverUrl), key.trim());
    else await this.context.secrets.delete(name(serverUrl));
  }

  /** Where the settings hold a key, in plain text, offer to move it. */
  async offerMove(): Promise<void> {
    const { apiKey, serverUrl } = serverSettings();
    if (!apiKey || !serverUrl || this.context.globalState.get<boolean>(DECLINED)) return;
    const choice = await vscode.window.showWarningMessage(
      "The API key of the sandbox server is in your settings, in plain text.",
      MOVE,
      NEVER,
    );
    if (choice === NEVER) await this.context.globalState.update(DECLINED, true);
    if (choice !== MOVE) return;
    await this.context.secrets.store(name(serverUrl), apiKey);
    await removeFromSettings();
  }
}

/** A key is stored for one server: a workspace that names another does not get it. */
function name(serverUrl: string): string {
  return `apiKey:${serverUrl}`;
}

async function removeFromSettings(): Promise<void> {
  const settings = vscode.workspace.getConfiguration(SECTION);
  const held = settings.inspect<string>("apiKey");
  if (held?.globalValue) await settings.update("apiKey", undefined, vscode.ConfigurationTarget.Global);
  if (held?.workspaceValue) await settings.update("apiKey", undefined, vscode.ConfigurationTarget.Workspace);
  for (const folder of vscode.workspace.workspaceFolders ?? []) {
    const own = vscode.workspace.getConfiguration(SECTION, folder);
    if (own.inspect<string>("apiKey")?.workspaceFolderValue) {
      await own.update("apiKey", undefined, vscode.ConfigurationTarget.WorkspaceFolder);
    }
  }
}
