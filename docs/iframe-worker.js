// Search on a site that is opened from the disk, where browsers start no worker: the theme's worker runs in a hidden
// frame instead. The name is the one by which the theme's plugin "offline" knows that a file of its own is not needed.
if (location.protocol === 'file:')
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement('iframe')
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent('message', { data }))
      this.inside.importScripts = async (...urls) => {
        for (const one of urls) await this.load(one)
      }
      this.ready = this.load(url)
    }
    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement('script')
        Object.assign(script, { src: url, onload: resolve, onerror: reject })
        this.inside.document.body.append(script)
      })
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent('message', { data })))
    }
    terminate() {}
  }
