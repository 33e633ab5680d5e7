package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"

	toxiproxy "github.com/Shopify/toxiproxy/v2"

	"github.com/mysqllock/mysqllock/internal/wire"
)

// A workerSlot is one of the workers: its account, its proxies and its current process. When the
// process is killed, another one takes the slot.
type workerSlot struct {
	index   int
	proxy   *toxiproxy.Proxy // in front of wire
	wire    *wire.Proxy      // in front of the server
	process atomic.Pointer[process]
	started int // number of processes so far

	replacing sync.Mutex // held while a fault replaces the process
}

// A process is a worker as the run sees it.
type process struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended and all its events are recorded

	mu     sync.Mutex // protects following fields
	input  io.Closer
	orders *json.Encoder
}

// send sends an order. It ignores errors: a dead process is detected by its output.
func (p *process) send(o order) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.orders.Encode(o)
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// start starts a new process in the slot.
func (w *workerSlot) start(t *testRun) error {
	w.started++
	p := &process{name: fmt.Sprintf("worker-%d-%d", w.index, w.started), ended: make(chan struct{})}
	text, err := json.Marshal(job{
		Worker: p.name,
		DSN:    fmt.Sprintf("%s%d@tcp(%s)/%s?interpolateParams=true&timeout=5s", account, w.index, w.proxy.Listen, database) + t.isolation(w),
	})
	if err != nil {
		return err
	}
	p.cmd = exec.Command(t.executable)
	p.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	input, err1 := p.cmd.StdinPipe()
	output, err2 := p.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, p.cmd.Start()); err != nil {
		return err
	}
	p.input, p.orders = input, json.NewEncoder(input)
	go func() {
		defer close(p.ended)
		t.recordAll(output)
		p.cmd.Wait()
		t.mu.Lock()
		t.dead[p.name] = true
		t.mu.Unlock()
	}()
	w.process.Store(p)
	return nil
}

// isolation returns DSN parameters that make the sessions of every other worker READ UNCOMMITTED.
func (t *testRun) isolation(w *workerSlot) string {
	variable := map[string]string{"mysql": "transaction_isolation", "mariadb": "tx_isolation"}[t.kind]
	if w.index%2 == 0 {
		return ""
	}
	return "&" + variable + "=%27READ-UNCOMMITTED%27"
}

// recordAll records the events in the output of a process until it ends.
func (t *testRun) recordAll(output io.Reader) {
	events := json.NewDecoder(output)
	for {
		var e event
		if events.Decode(&e) != nil {
			return
		}
		t.record(e)
	}
}

// replace kills a process and starts another one in its slot. It returns false if another fault
// has replaced the process already.
func (t *testRun) replace(w *workerSlot, p *process) bool {
	p.kill()
	w.replacing.Lock()
	defer w.replacing.Unlock()
	if w.process.Load() != p {
		return false
	}
	if err := w.start(t); err != nil {
		t.recordViolation(violation{"worker", "", err.Error()})
		return false
	}
	w.process.Load().send(t.newBeginOrder())
	return true
}
