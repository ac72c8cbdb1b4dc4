package minibroker

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
)

func ownTopics(t *testing.T, b *Broker) []string {
	topics, err := b.Topics()
	check(t, err)
	names := []string{}
	for _, topic := range topics {
		if topic["internal"] == false {
			names = append(names, topic["name"].(string))
		}
	}
	return names
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expectCode(t *testing.T, err error, code string) {
	t.Helper()
	var rejected *Error
	if !errors.As(err, &rejected) || rejected.Code != code {
		t.Fatalf("expected %s, got %v", code, err)
	}
}

func expectText(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Fatalf("%q is not in %q", text, err)
		}
	}
}

func TestRunningBroker(t *testing.T) {
	b := StartT(t, Set("num.partitions", "3"), Args("--control", "0.0.0.0:0")) // A token is required.

	t.Run("messages are produced, read and awaited", func(t *testing.T) {
		check(t, b.Produce("messages", "a"))
		check(t, b.ProduceRecords("messages", M{"key": "7", "value": "b"}))
		found, err := b.WaitFor("messages", 2, 10*time.Second)
		check(t, err)
		keys := map[any]any{found[0]["value"]: found[0]["key"], found[1]["value"]: found[1]["key"]}
		if !reflect.DeepEqual(keys, map[any]any{"a": nil, "b": "7"}) {
			t.Fatal(found)
		}
		_, err = b.WaitFor("messages", 3, 20*time.Millisecond)
		expectText(t, err, "REQUEST_TIMED_OUT", "there are 2")
		check(t, b.Produce("many", make([]string, 2001)...))
		many, err := b.Messages("many")
		check(t, err)
		if len(many) != 2001 {
			t.Fatal(len(many))
		}
		_, err = b.WaitForGroup("..", nil, 20*time.Millisecond)
		expectText(t, err, "'..' was awaited for 20 ms to have state Stable")
		check(t, b.Reset())
	})

	t.Run("topics are created and deleted", func(t *testing.T) {
		check(t, b.CreateTopic("orders", 2, map[string]string{"retention.ms": "60000"}))
		if topics := ownTopics(t, b); !reflect.DeepEqual(topics, []string{"orders"}) {
			t.Fatal(topics)
		}
		check(t, b.DeleteTopic("orders"))
		expectCode(t, b.DeleteTopic("a/../b?c"), "UNKNOWN_TOPIC_OR_PARTITION")
		expectText(t, b.CreateTopic("", 1, nil), "INVALID_REQUEST: name: must have 1 to 249 characters, not 0. GET /openapi.json describes every body.")
		check(t, b.CreateTopic("left", 1, nil))
		check(t, b.Reset())
		if topics := ownTopics(t, b); len(topics) > 0 {
			t.Fatal(topics)
		}
	})

	t.Run("the clock is advanced and stopped", func(t *testing.T) {
		before, err := b.Clock()
		check(t, err)
		after, err := b.Advance(11 * time.Second)
		check(t, err)
		if after["offset_ms"].(float64) < before["offset_ms"].(float64)+11_000 {
			t.Fatal(before, after)
		}
		for _, frozen := range []bool{true, false} {
			clock, err := b.Freeze(frozen)
			check(t, err)
			if clock["frozen"] != frozen {
				t.Fatal(clock)
			}
		}
	})

	t.Run("fault rules are added, waited for, released and removed", func(t *testing.T) {
		_, err := b.AddFault(M{"action": "eror"})
		expectText(t, err, "action")
		fault, err := b.AddFault(M{"action": "error", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER"})
		check(t, err)
		expectCode(t, fault.Wait(1, time.Millisecond), "REQUEST_TIMED_OUT")
		check(t, fault.Release())
		check(t, fault.Remove())
		_, err = b.AddFault(M{"action": "delay", "api": "Fetch", "delay_ms": 1})
		check(t, err)
		check(t, b.ClearFaults())
		if faults, err := b.Faults(); err != nil || len(faults) > 0 {
			t.Fatal(faults, err)
		}
	})

	t.Run("the journal has what happened since its start", func(t *testing.T) {
		journal, err := b.StartJournal()
		check(t, err)
		_, err = b.Advance(5 * time.Millisecond)
		check(t, err)
		entry, err := journal.WaitFor(map[string]string{"kind": "clock"}, 10*time.Second)
		check(t, err)
		if entry["kind"] != "clock" {
			t.Fatal(entry)
		}
		_, err = journal.WaitFor(map[string]string{"api": "Produce"}, time.Millisecond)
		expectText(t, err, "no entry with map[api:Produce]")
		check(t, journal.Stop())
		journal, err = b.StartJournal()
		check(t, err)
		if entries, err := journal.Entries(nil); err != nil || len(entries) > 0 {
			t.Fatal(entries, err)
		}
	})
}

func TestBrokerThatCannotStartReturnsItsReason(t *testing.T) {
	_, err := Start(context.Background(), Set("num.partition", "3"))
	expectText(t, err, "did you mean num.partitions")
}

func TestProgramThatIsNoBrokerReturnsWhatItWrote(t *testing.T) {
	_, err := start(context.Background(), exec.Command("sh", "-c", "echo no broker >&2"))
	expectText(t, err, "it ended", "no broker")
	_, err = start(context.Background(), exec.Command("/nowhere/minibroker"))
	expectText(t, err, "no such file")
}

func TestSilentProgramIsStoppedWithTheContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := start(ctx, exec.Command("cat"))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestSecondStopDoesNothing(t *testing.T) {
	b, err := Start(context.Background(), Listener("PLAINTEXT://127.0.0.1:0"))
	check(t, err)
	b.Stop()
	b.Stop()
	if err := syscall.Kill(b.PID, 0); !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
}

func TestExecutableIsSearchedInOrder(t *testing.T) {
	folder := t.TempDir()
	program := func(name, script string) string {
		path := filepath.Join(folder, name)
		check(t, os.MkdirAll(filepath.Dir(path), 0o700))
		check(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
		return path
	}
	expect := func(files fstest.MapFS, command ...string) {
		t.Helper()
		found, err := findCommand(files)
		if err != nil || !reflect.DeepEqual(found, command) {
			t.Fatal(found, err)
		}
	}
	none, packaged := fstest.MapFS{}, fstest.MapFS{"bin/minibroker": {Data: []byte("#!/bin/sh\nexit 7\n")}}
	t.Setenv("XDG_CACHE_HOME", filepath.Join(folder, "cache"))
	t.Setenv("HOME", folder)
	t.Setenv("PATH", folder+"/old:"+folder+"/pythons:"+folder+"/installed")
	old := program("old/python3", "exit 1")

	t.Setenv("MINIBROKER", "")
	_, err := findCommand(none)
	expectText(t, err, "MINIBROKER (not set)", "bin/minibroker", folder+"/pythons", old, "pip install minibroker")

	python := program("pythons/python", "exit 0")
	expect(none, python, "-m", "minibroker")
	installed := program("installed/minibroker", "exit 0")
	expect(none, installed)
	for range []int{1, 2} { // It is unpacked at most once.
		found, err := findCommand(packaged)
		check(t, err)
		if status := exec.Command(found[0]).Run(); status.Error() != "exit status 7" {
			t.Fatal(status)
		}
	}
	chosen := program("chosen", "exit 0")
	t.Setenv("MINIBROKER", chosen)
	expect(packaged, chosen)
	t.Setenv("MINIBROKER", "/nowhere")
	_, err = findCommand(packaged)
	expectText(t, err, "MINIBROKER is /nowhere", "pip install minibroker")
}
