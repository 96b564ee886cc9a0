// The plugin of cowfs for OpenCode, as `cowfs hooks install opencode` writes it.
//
// OpenCode keeps conversations in a database of its own. This plugin writes them into files that
// only grow (cowfs/agents/opencode/adapter.py says what is in them) and runs
// `cowfs hook opencode EVENT` at what happens. Whatever goes wrong in it, OpenCode goes on.

import { spawn, spawnSync } from "node:child_process"
import { randomBytes } from "node:crypto"
import { appendFileSync, mkdirSync, readFileSync } from "node:fs"
import { homedir } from "node:os"
import { dirname, join } from "node:path"

const COMMAND = ["cowfs"]
const TIMEOUT = 30_000
// The tools that change files.
const TOOLS = new Set(["bash", "edit", "multiedit", "write", "patch", "apply_patch"])

const STATE = process.env.XDG_STATE_HOME || join(homedir(), ".local", "state")
const DIRECTORY = join(STATE, "cowfs", "opencode")

// -- cowfs ------------------------------------------------------------------------------------------

const pending = new Map()

function words(event) {
  return [...COMMAND.slice(1), "hook", "opencode", event]
}

// What cowfs answers: {context, notice}, both may be missing.
function tell(event, fields) {
  const input = JSON.stringify(fields)
  const key = Symbol(event)
  pending.set(key, [event, input])
  return new Promise((resolve) => {
    let output = ""
    const end = () => {
      pending.delete(key)
      try {
        resolve(JSON.parse(output) ?? {})
      } catch {
        resolve({})
      }
    }
    try {
      const child = spawn(COMMAND[0], words(event), {
        stdio: ["pipe", "pipe", "ignore"],
        timeout: TIMEOUT,
      })
      child.on("error", end)
      child.on("close", end)
      child.stdin.on("error", () => {})
      child.stdout.on("data", (data) => (output += data))
      child.stdin.end(input)
    } catch {
      end()
    }
  })
}

function tellNow(event, input) {
  try {
    spawnSync(COMMAND[0], words(event), { input, stdio: ["pipe", "ignore", "ignore"], timeout: TIMEOUT })
  } catch {}
}

// The same text for the same value, in whatever order an object's keys came.
function text(value) {
  return JSON.stringify(value, (_, part) => {
    if (part === null || typeof part !== "object" || Array.isArray(part)) return part
    return Object.fromEntries(Object.entries(part).sort(([a], [b]) => (a < b ? -1 : 1)))
  })
}

// -- a conversation ---------------------------------------------------------------------------------

class Session {
  constructor(info) {
    this.info = info
    this.root = this
    this.messages = new Map() // id to {info, parts: id to part}
    this.started = false
    this.ending = null // cowfs being told of the end of a turn
    this.written = null // what the file says: id to line
  }

  get path() {
    if (this.root === this) return join(DIRECTORY, `${this.info.id}.jsonl`)
    return join(DIRECTORY, this.root.info.id, `${this.info.id}.jsonl`)
  }

  message(id) {
    if (!this.messages.has(id)) this.messages.set(id, { info: null, parts: new Map() })
    return this.messages.get(id)
  }

  // Add to the file what it does not say yet.
  write() {
    this.written ??= this.read()
    const lines = []
    const say = (key, line, same = line) => {
      if (this.written.get(key) === same) return
      this.written.set(key, same)
      lines.push(line)
    }
    const { title, revert, directory } = this.info
    say("info", text({ info: this.info }), text({ title, revert, directory }))
    for (const [id, message] of this.messages) {
      if (!message.info) continue
      const parts = [...message.parts.values()].sort((a, b) => (a.id < b.id ? -1 : 1))
      say(id, text({ message: { info: message.info, parts } }))
    }
    for (const id of this.written.keys()) {
      if (id === "info" || this.messages.has(id)) continue
      this.written.delete(id)
      lines.push(text({ removed: id }))
    }
    if (lines.length === 0) return
    mkdirSync(dirname(this.path), { recursive: true, mode: 0o700 })
    appendFileSync(this.path, lines.join("\n") + "\n", { mode: 0o600 })
  }

  read() {
    const found = new Map()
    try {
      for (const line of readFileSync(this.path, "utf8").split("\n")) {
        if (!line) continue
        const value = JSON.parse(line)
        if (value.message) found.set(value.message.info.id, line)
        else if (value.removed) found.delete(value.removed)
      }
    } catch {}
    return found
  }
}

// -- the plugin -------------------------------------------------------------------------------------

export const Cowfs = async ({ client, directory }) => {
  const sessions = new Map()

  // A session that this process has not made is read from the database once.
  async function find(id) {
    let session = sessions.get(id)
    if (session) return session
    const info = (await client.session.get({ path: { id } })).data
    if (!info) return null
    session = sessions.get(id) ?? new Session(info)
    sessions.set(id, session)
    for (const { info, parts } of (await client.session.messages({ path: { id } })).data ?? []) {
      const message = session.message(info.id)
      message.info ??= info
      for (const part of parts) if (!message.parts.has(part.id)) message.parts.set(part.id, part)
    }
    await place(session)
    return session
  }

  async function place(session) {
    const parent = session.info.parentID && (await find(session.info.parentID))
    session.root = parent ? parent.root : session
  }

  function fields(session, more) {
    const main = session.root
    return {
      session: main.info.id,
      ...(main !== session && { subagent: session.info.id, subagent_transcript: session.path }),
      cwd: session.info.directory || directory,
      transcript: main.path,
      title: main.info.title,
      version: main.info.version,
      pid: process.pid,
      directories: [directory],
      ...more,
    }
  }

  async function begin(session, kind) {
    if (session.started) return {}
    session.started = true
    if (session.root !== session) return tell("subagent-start", fields(session, { subagent_kind: kind }))
    const source = session.messages.size > 0 ? "resume" : "startup"
    return tell("session-start", fields(session, { source }))
  }

  function write(session) {
    try {
      session.write()
      if (session.root !== session) session.root.write()
    } catch {}
  }

  // A hook of OpenCode's that cannot fail.
  const safe = (work) => async (...given) => {
    try {
      await work(...given)
    } catch {}
  }

  const listeners = {
    "session.created": ({ info }) => {
      if (sessions.has(info.id)) return
      const session = new Session(info)
      sessions.set(info.id, session)
      return place(session)
    },
    "session.updated": ({ info }) => {
      const session = sessions.get(info.id)
      if (session) session.info = info
    },
    "message.updated": ({ info }) => {
      const session = sessions.get(info.sessionID)
      if (session) session.message(info.id).info = info
    },
    "message.removed": ({ sessionID, messageID }) => {
      sessions.get(sessionID)?.messages.delete(messageID)
    },
    "message.part.updated": ({ part }) => {
      sessions.get(part.sessionID)?.message(part.messageID).parts.set(part.id, part)
    },
    "message.part.removed": ({ sessionID, messageID, partID }) => {
      sessions.get(sessionID)?.messages.get(messageID)?.parts.delete(partID)
    },
    "session.idle": async ({ sessionID }) => {
      const session = await find(sessionID)
      if (!session?.started) return
      write(session)
      session.ending = tell(session.root === session ? "turn-end" : "subagent-end", fields(session))
      await session.ending
    },
  }

  process.on("exit", () => {
    for (const [event, input] of pending.values()) tellNow(event, input)
    for (const session of sessions.values()) {
      if (!session.started || session.root !== session) continue
      write(session)
      tellNow("session-end", JSON.stringify(fields(session, { reason: "exit" })))
    }
  })

  return {
    event: safe(({ event }) => listeners[event.type]?.(event.properties)),

    "chat.message": safe(async ({ sessionID, agent }, { message, parts }) => {
      const session = await find(sessionID)
      if (!session) return
      await session.ending
      write(session)
      const replies = [await begin(session, agent ?? "")]
      if (session.root === session) {
        const prompt = parts.filter((part) => part.type === "text" && !part.synthetic)
        const text = prompt.map((part) => part.text).join("\n")
        replies.push(await tell("prompt", fields(session, { prompt: text, prompt_id: message.id })))
      }
      const context = replies.map((reply) => reply.context).filter(Boolean).join("\n")
      const last = parts.at(-1)
      if (context && last) {
        const id = last.id.slice(0, 16) + "z" + randomBytes(7).toString("hex").slice(0, 13)
        parts.push({ id, sessionID, messageID: message.id, type: "text", text: context, synthetic: true })
      }
    }),

    "tool.execute.before": safe(async ({ tool, sessionID, callID }, { args }) => {
      const session = TOOLS.has(tool) && (await find(sessionID))
      if (!session) return
      write(session)
      const path = args?.filePath
      const call = { tool, tool_id: callID, tool_text: args?.command ?? path, tool_path: path }
      await tell("tool-start", fields(session, call))
    }),

    "tool.execute.after": safe(async ({ tool, sessionID, callID }, output) => {
      const session = TOOLS.has(tool) && (await find(sessionID))
      if (!session) return
      const reply = await tell("tool-end", fields(session, { tool, tool_id: callID }))
      if (reply.context && typeof output.output === "string") output.output += `\n\n${reply.context}`
    }),

    "experimental.session.compacting": safe(async ({ sessionID }) => {
      const session = await find(sessionID)
      if (!session) return
      write(session)
      await tell("compaction", fields(session))
    }),
  }
}
