package wire

import (
	"bufio"
	"net"
	"regexp"
	"sync"
	"time"
)

// A conn forwards one client's connection to the server.
//
// In each direction, one goroutine reads and counts, and another writes after the delay. A queue
// between them lets the reader go on while a chunk is delayed.
type conn struct {
	proxy  *Proxy
	client *net.TCPConn
	server *net.TCPConn // nil until run has dialled

	once sync.Once
	done chan struct{} // closed when the connection is closed or cut

	// proxy.mu protects following fields
	waiting        bool   // a command was sent, and its reply has not begun
	selectPrepared bool   // replies to prepared statements may be rows
	cutReply       bool   // cut the connection when the next reply arrives
	dropReplies    int    // how many replies to drop: the first one to each repeated command
	failReply      []byte // the error that replaces the reply after those; nil if none does
}

// A chunk is some bytes in transit. A chunk without bytes is the end of the connection.
type chunk struct {
	bytes []byte
	due   time.Time
	cut   bool // cut the connection when the bytes have been written
}

// queueLength limits the number of chunks in transit. If the queue is full, its reader waits.
const queueLength = 1024

func (c *conn) run() {
	defer c.close()
	c.proxy.mu.Lock()
	blackHole, backend := c.proxy.blackHole, c.proxy.backend
	c.proxy.mu.Unlock()
	if blackHole {
		<-c.done
		return
	}

	server, err := net.DialTimeout("tcp", backend, 5*time.Second)
	if err != nil {
		return
	}
	c.server = server.(*net.TCPConn)
	up, down := make(chan chunk, queueLength), make(chan chunk, queueLength)
	var wg sync.WaitGroup
	wg.Go(func() { c.readClient(up) })
	wg.Go(func() { c.write(c.server, up) })
	wg.Go(func() { c.readServer(down) })
	wg.Go(func() { c.write(c.client, down) })
	<-c.done
	c.server.Close() // not a reset: the server executes what it was sent
	wg.Wait()
}

// close closes the connection and removes it from the proxy.
func (c *conn) close() { c.once.Do(func() { c.closeBy((*net.TCPConn).Close) }) }

// cut does the same, but by a reset, which the client sees as an error.
func (c *conn) cut() { c.once.Do(func() { c.closeBy(reset) }) }

func (c *conn) closeBy(closeClient func(*net.TCPConn) error) {
	c.proxy.mu.Lock()
	delete(c.proxy.conns, c)
	c.proxy.mu.Unlock()
	close(c.done)
	closeClient(c.client)
}

// reset closes a connection by a reset, and discards unsent bytes.
func reset(conn *net.TCPConn) error {
	conn.SetLinger(0)
	return conn.Close()
}

// readClient reads the client's packets and queues them. It closes the queue.
func (c *conn) readClient(queue chan<- chunk) {
	defer close(queue)
	packets := packetReader{r: bufio.NewReader(c.client)}
	for {
		packet, err := packets.next()
		if err != nil {
			c.enqueue(queue, nil, false)
			return
		}
		cut, repeat := c.handle(&packet)
		if repeat && !c.enqueue(queue, packet.bytes, false) || !c.enqueue(queue, packet.bytes, cut) {
			return
		}
	}
}

// handle counts a client's packet and applies the faults that concern it. It reports whether to
// cut the connection when the server has the packet, and whether to send the packet twice.
func (c *conn) handle(packet *packet) (cut, repeat bool) {
	if !packet.command || packet.name == comQuit {
		return false, false
	}
	p := c.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	p.commands++
	if packet.name == comQuery {
		p.queries = append(p.queries, string(packet.args))
	}
	if packet.name == comStmtExecute && p.forget {
		copy(packet.args, "\xff\xff\xff\x00") // an unknown statement id
	}
	if packet.name == comStmtClose || packet.name == comStmtSendLongData {
		return false, false // they have no reply
	}
	if !c.waiting {
		c.waiting = true
		p.roundTrips++
	}
	cut, p.cutCommand = p.cutCommand, false
	// If cut is set, cut the reply as well: it may arrive before the connection is cut.
	c.cutReply, p.cutReply = c.cutReply || p.cutReply || cut, false
	rows := packet.name == comStmtExecute && c.selectPrepared // the reply may have several packets
	switch packet.name {
	case comQuery:
		rows = selects.Match(packet.args)
	case comStmtPrepare:
		c.selectPrepared, rows = c.selectPrepared || selects.Match(packet.args), true
	}
	repeat = p.repeat && !rows
	if p.interfere != nil && (packet.name == comQuery || packet.name == comStmtExecute && !rows) {
		query := ""
		if packet.name == comQuery {
			query = string(packet.args)
		}
		i := p.interfere(query)
		repeat = repeat || i.Repeat
		if i.Error != 0 {
			c.failReply = errorPacket(i.Error, "an error of the proxy")
			if i.NotSent {
				packet.bytes = ping
			}
		}
	}
	if repeat {
		c.dropReplies++
	}
	if p.failReply != nil {
		c.failReply, p.failReply = p.failReply, nil
	}
	return cut, repeat
}

// selects matches the statements that return rows.
var selects = regexp.MustCompile(`^(/\*.*?\*/\s*)*SELECT`)

// readServer reads the server's replies and queues them. It closes the queue.
func (c *conn) readServer(queue chan<- chunk) {
	defer close(queue)
	var held []byte // the beginning of a reply that will be dropped or replaced
	for {
		buf := make([]byte, 16<<10)
		n, err := c.server.Read(buf)
		if err != nil {
			c.enqueue(queue, nil, false)
			return
		}
		c.proxy.mu.Lock()
		c.waiting = false
		cut := c.cutReply
		held = c.replaceReplies(append(held, buf[:n]...))
		var reply []byte
		if c.dropReplies == 0 && c.failReply == nil {
			reply, held = held, nil
		}
		c.proxy.mu.Unlock()
		if cut {
			c.cut()
			return
		}
		if len(reply) > 0 && !c.enqueue(queue, reply, false) {
			return
		}
	}
}

// replaceReplies drops and replaces the complete replies at the beginning of sent, and returns the
// result. The caller holds proxy.mu.
func (c *conn) replaceReplies(sent []byte) []byte {
	for (c.dropReplies > 0 || c.failReply != nil) && len(sent) >= 4 && len(sent) >= 4+uint24(sent) {
		rest := sent[4+uint24(sent):]
		if c.dropReplies > 0 {
			c.dropReplies--
			sent = rest
			continue
		}
		sent, c.failReply = append(c.failReply, rest...), nil
	}
	return sent
}

// enqueue queues bytes, or the end of the connection if bytes is nil. It reports false if the
// connection has been closed.
func (c *conn) enqueue(queue chan<- chunk, bytes []byte, cut bool) bool {
	c.proxy.mu.Lock()
	due := time.Now().Add(c.proxy.delay)
	c.proxy.mu.Unlock()
	select {
	case queue <- chunk{bytes, due, cut}:
		return true
	case <-c.done:
		return false
	}
}

// write writes the chunks of a queue. It closes the connection when the other side has closed its
// own.
func (c *conn) write(to *net.TCPConn, queue <-chan chunk) {
	defer c.close()
	for chunk := range queue {
		if !c.waitToWrite(chunk.due) || chunk.bytes == nil {
			return
		}
		if _, err := to.Write(chunk.bytes); err != nil {
			return
		}
		if chunk.cut {
			c.cut()
			return
		}
	}
}

// waitToWrite waits until due, and until the proxy is not frozen. It reports false if the
// connection is closed first; in a black hole, it waits for that.
func (c *conn) waitToWrite(due time.Time) bool {
	if wait := time.Until(due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.done:
			return false
		}
	}
	for {
		c.proxy.mu.Lock()
		blackHole, unfrozen := c.proxy.blackHole, c.proxy.unfrozen
		c.proxy.mu.Unlock()
		switch {
		case blackHole:
			<-c.done
			return false
		case unfrozen == nil:
			return true
		}
		select {
		case <-unfrozen:
		case <-c.done:
			return false
		}
	}
}
