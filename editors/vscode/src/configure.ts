// "Sandbox: Configure": the settings of a run, one question each.

import * as vscode from "vscode";
import type { Packages } from "./protocol";
import { SECTION, target } from "./settings";

interface Choice extends vscode.QuickPickItem {
  change(): Promise<unknown>;
}

type LimitName = "timeoutSec" | "startupTimeoutSec" | "memoryMb" | "cpu";

const LIMITS: [name: LimitName, label: string, prompt: string][] = [
  ["timeoutSec", "Time Limit", "Seconds until a run is killed"],
  ["startupTimeoutSec", "Start-up Limit", "Seconds until a sandbox that does not start is given up"],
  ["memoryMb", "Memory", "Memory of a run, in MiB"],
  ["cpu", "Processors", "How many processors a run may use, such as 0.5"],
];

/** Ask what to change, and change it in the settings of the workspace. */
export async function configure(): Promise<void> {
  const choice = await vscode.window.showQuickPick(choices(), {
    title: "Sandbox: Configure",
    placeHolder: "What to change for this workspace",
    matchOnDescription: true,
  });
  await choice?.change();
}

function choices(): Choice[] {
  const settings = vscode.workspace.getConfiguration(SECTION);
  const limits = settings.get<Partial<Record<LimitName, number>>>("limits") ?? {};
  const packages = settings.get<Packages>("packages") ?? {};
  return [
    text("image", "Image", "An image, such as python:3.12. Empty: what the language asks for"),
    text("runtime", "Runtime", "What isolates the code, such as native or docker. Empty: what the server chooses"),
    ...(["python", "node"] as const).map((language) => packageChoice(language, packages)),
    ...LIMITS.map(([name, label, prompt]) => limitChoice(name, label, prompt, limits)),
    text("serverUrl", "Server", "The URL of a server. Empty: run on this machine", vscode.ConfigurationTarget.Global),
    {
      label: "API Key",
      description: "kept in the secret store",
      change: async () => await vscode.commands.executeCommand(`${SECTION}.setApiKey`),
    },
    {
      label: "All Settings",
      change: async () => await vscode.commands.executeCommand("workbench.action.openSettings", SECTION),
    },
  ];
}

function text(name: string, label: string, prompt: string, where = target()): Choice {
  const held = vscode.workspace.getConfiguration(SECTION).get<string>(name) ?? "";
  return {
    label,
    description: held || "default",
    change: async () => {
      const answer = await vscode.window.showInputBox({ title: label, prompt, value: held, ignoreFocusOut: true });
      if (answer !== undefined) await update(name, answer.trim() || undefined, where);
    },
  };
}

function packageChoice(language: keyof Packages, packages: Packages): Choice {
  const label = language === "python" ? "Python Packages" : "Node Packages";
  const held = (packages[language] ?? []).join(" ");
  return {
    label,
    description: held || "none",
    change: async () => {
      const answer = await vscode.window.showInputBox({
        title: label,
        prompt: "Names with their versions, separated by spaces",
        value: held,
        ignoreFocusOut: true,
      });
      if (answer !== undefined) await update("packages", { ...packages, [language]: answer.split(/\s+/).filter(Boolean) });
    },
  };
}

function limitChoice(name: LimitName, label: string, prompt: string, limits: Partial<Record<LimitName, number>>): Choice {
  const held = limits[name];
  return {
    label,
    description: held === undefined ? "default" : String(held),
    change: async () => {
      const answer = await vscode.window.showInputBox({
        title: label,
        prompt: `${prompt}. Empty: what the server has`,
        value: held === undefined ? "" : String(held),
        ignoreFocusOut: true,
        validateInput: (typed) => (typed.trim() && !(Number(typed) > 0) ? "A number above 0, or nothing." : undefined),
      });
      if (answer === undefined) return;
      const { [name]: _, ...others } = limits;
      await update("limits", answer.trim() ? { ...others, [name]: Number(answer) } : others);
    },
  };
}

async function update(name: string, value: unknown, where = target()): Promise<void> {
  await vscode.workspace.getConfiguration(SECTION).update(name, value, where);
}
