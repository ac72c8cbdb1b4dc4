// Package minibroker starts a small, real Kafka broker for tests.
//
//	func TestOrders(t *testing.T) {
//		kafka := minibroker.StartT(t)
//		client, err := kgo.NewClient(kgo.SeedBrokers(kafka.Brokers...))
//		...
//	}
//
// The broker is the program minibroker, which runs in processes of its own. It ends with Stop, and
// with this process at the latest.
package minibroker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	startMax = 150 * time.Second // longer than the broker allows itself, so that it reports the reason
	stopMax  = 15 * time.Second
	logMax   = 64 * 1024
)

// Broker is a running broker.
type Broker struct {
	Brokers          []string // host:port of each listener, as clients take them
	BootstrapServers string   // the same with commas between them
	ControlURL       string
	PID              int

	base   *url.URL
	cancel context.CancelFunc
	ended  chan struct{}
	log    logTail
}

// Option is an option of Start: Set, Listener or Args.
type Option func(*options)

type options struct {
	listener string
	args     []string
}

// Set gives a setting of the broker, e.g. Set("num.partitions", "3").
func Set(name, value string) Option { return Args("--set", name+"="+value) }

// Listener gives the address for clients; by default it is a free port of the loopback interface.
func Listener(address string) Option { return func(o *options) { o.listener = address } }

// Args gives further options of `minibroker start`.
func Args(args ...string) Option { return func(o *options) { o.args = append(o.args, args...) } }

// Start starts a broker and waits until clients can connect. It runs until Stop, or until ctx is done.
func Start(ctx context.Context, opts ...Option) (*Broker, error) {
	command, err := findCommand(packaged)
	if err != nil {
		return nil, err
	}
	chosen := options{listener: "PLAINTEXT://127.0.0.1:0"}
	for _, option := range opts {
		option(&chosen)
	}
	arguments := append(command[1:], "start", "--json", "--exit-with-parent", "--listener", chosen.listener)
	return start(ctx, exec.Command(command[0], append(arguments, chosen.args...)...))
}

func start(ctx context.Context, program *exec.Cmd) (*Broker, error) {
	ctx, cancel := context.WithCancel(ctx)
	b := &Broker{cancel: cancel, ended: make(chan struct{})}
	program.Stderr = &b.log
	stdout, err := program.StdoutPipe()
	if err != nil {
		return nil, err
	}
	// The broker ends when its standard input does, however this process ends.
	stdin, err := program.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := program.Start(); err != nil {
		return nil, fmt.Errorf("minibroker did not start: %w", err)
	}
	lines := make(chan []byte, 1)
	go func() {
		reader := bufio.NewReader(stdout)
		line, _ := reader.ReadBytes('\n')
		lines <- line
		io.Copy(io.Discard, reader)
		program.Wait()
		close(b.ended)
	}()
	go func() {
		select {
		case <-ctx.Done():
			stdin.Close()
		case <-b.ended:
			return
		}
		select {
		case <-time.After(stopMax):
			program.Process.Kill()
		case <-b.ended:
		}
	}()
	select {
	case line := <-lines:
		err = b.ready(line)
	case <-time.After(startMax):
		err = fmt.Errorf("it was not ready after %s", startMax)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		b.Stop()
		return nil, fmt.Errorf("minibroker did not start: %w\n%s", err, b.Log())
	}
	return b, nil
}

func (b *Broker) ready(line []byte) error {
	var ready struct {
		Event            string
		Message          string
		BootstrapServers string `json:"bootstrap_servers"`
		ControlURL       string `json:"control_url"`
		PID              int
	}
	if len(line) == 0 {
		return errors.New("it ended")
	}
	if err := json.Unmarshal(line, &ready); err != nil {
		return fmt.Errorf("it wrote %q", line)
	}
	if ready.Event != "ready" {
		return errors.New(ready.Message)
	}
	base, err := url.Parse(ready.ControlURL)
	b.base = base
	b.BootstrapServers, b.Brokers = ready.BootstrapServers, strings.Split(ready.BootstrapServers, ",")
	b.ControlURL, b.PID = ready.ControlURL, ready.PID
	return err
}

// StartT starts a broker for a test, which ends with the test. It fails the test if there is none,
// and logs what the broker has written if the test fails.
func StartT(t testing.TB, opts ...Option) *Broker {
	t.Helper()
	b, err := Start(context.Background(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Stop()
		if log := b.Log(); t.Failed() && log != "" {
			t.Logf("minibroker wrote:\n%s", log)
		}
	})
	return b
}

// Stop stops the broker and waits until it has ended; a second call does nothing.
func (b *Broker) Stop() {
	b.cancel()
	<-b.ended
}

// Log returns the end of what the broker has written to its standard error.
func (b *Broker) Log() string { return b.log.String() }

// logTail keeps the last bytes that were written to it.
type logTail struct {
	mutex sync.Mutex
	kept  []byte
}

func (l *logTail) Write(written []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.kept = append(l.kept, written...)
	if extra := len(l.kept) - logMax; extra > 0 {
		l.kept = l.kept[extra:]
	}
	return len(written), nil
}

func (l *logTail) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return string(l.kept)
}
