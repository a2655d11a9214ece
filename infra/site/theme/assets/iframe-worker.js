// Browsers start no worker from file://. The search runs its script in a hidden frame there instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.title = "search"
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside = inside
      this.ready = new Promise((resolve, reject) => {
        const script = frame.contentDocument.createElement("script")
        script.onload = resolve
        script.onerror = reject
        script.src = address
        frame.contentDocument.body.append(script)
      })
    }
    async postMessage(data) {
      await this.ready
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
    }
    terminate() {}
  }
