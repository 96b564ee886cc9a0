// Runs cowfs' plugin as OpenCode does, with a client of its own: a session with two prompts, a tool
// and a sub-agent. What is printed: the parts of the first prompt, and the output of the tool.
import { Cowfs } from "./cowfs.mjs"

const [mode] = process.argv.slice(2)
const stored = {
  info: { id: "ses_a", directory: "/w", title: "old", version: "1.18.33", time: { created: 1, updated: 2 } },
  messages: [
    { info: { sessionID: "ses_a", id: "msg_1", role: "user" }, parts: [{ id: "prt_1", type: "text", text: "before" }] },
  ],
}
const client = {
  session: {
    get: async ({ path }) => {
      if (mode === "broken") throw new Error("no database")
      return { data: path.id === "ses_a" ? stored.info : undefined }
    },
    messages: async () => ({ data: stored.messages }),
  },
}

const hooks = await Cowfs({ client, directory: "/w" })
const say = (type, properties) => hooks.event({ event: { type, properties } })
const prompt = async (sessionID, id, text) => {
  const parts = [{ id: `prt_22c2ce95a001${id}`, type: "text", text }]
  await hooks["chat.message"]({ sessionID, agent: "build" }, { message: { id }, parts })
  return parts
}

if (mode === "new") await say("session.created", { info: stored.info })
const asked = await prompt("ses_a", "msg_2", "add them up")
await say("message.updated", { info: { id: "msg_2", sessionID: "ses_a", role: "user" } })
await say("message.part.updated", {
  part: { id: "prt_2", messageID: "msg_2", sessionID: "ses_a", type: "text", text: "add them up" },
})
const output = { output: "done" }
for (const tool of ["bash", "read"]) {
  const call = { tool, sessionID: "ses_a", callID: `call_${tool}` }
  await hooks["tool.execute.before"](call, { args: { command: "make" } })
  await hooks["tool.execute.after"](call, output)
}
await say("session.created", { info: { id: "ses_b", parentID: "ses_a", directory: "/w" } })
await prompt("ses_b", "msg_3", "count")
await say("message.updated", { info: { id: "msg_3", sessionID: "ses_b", role: "user" } })
await say("session.idle", { sessionID: "ses_b" })
await say("session.updated", { info: { ...stored.info, title: "Adding" } })
await say("session.idle", { sessionID: "ses_a" })
await say("message.removed", { sessionID: "ses_a", messageID: "msg_2" })
await say("something.new", null)
console.log(JSON.stringify({ asked, output }))
process.exit(0)
