package orders

import (
	"context"
	"testing"
	"time"

	"example.org/minibroker"
	"github.com/twmb/franz-go/pkg/kgo"
)

func start(t *testing.T) (*minibroker.Broker, *kgo.Client) {
	kafka := minibroker.StartT(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.Brokers...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	check(t, err)
	t.Cleanup(client.Close)
	check(t, kafka.CreateTopic(topic, 1, map[string]string{"retention.ms": "1000"}))
	return kafka, client
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOrderArrives(t *testing.T) {
	_, client := start(t)
	check(t, Send(t.Context(), client, "7"))
	order, err := First(t.Context(), client)
	check(t, err)
	if order != "7" {
		t.Fatal(order)
	}
}

func TestOrderIsSentAgainIfTheFirstAnswerIsAnError(t *testing.T) {
	kafka, client := start(t)
	fault, err := kafka.AddFault(minibroker.M{
		"action": "error", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "first": 1,
	})
	check(t, err)
	journal, err := kafka.StartJournal()
	check(t, err)
	check(t, Send(t.Context(), client, "8"))
	check(t, fault.Wait(1, 10*time.Second))
	requests, err := journal.Entries(map[string]string{"kind": "request", "api": "Produce"})
	check(t, err)
	if len(requests) != 2 {
		t.Fatal(requests)
	}
}

func TestOrderIsDeletedWhenItsRetentionTimeHasPassed(t *testing.T) {
	kafka, client := start(t)
	check(t, Send(t.Context(), client, "old"))
	_, err := kafka.Advance(10 * time.Minute) // Retention is checked every five minutes.
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for start := 0.0; start == 0; check(t, ctx.Err()) {
		view, err := kafka.Call("GET", nil, nil, "topics", topic)
		check(t, err)
		partition := view["partitions"].([]any)[0].(map[string]any)
		start = partition["log_start_offset"].(float64)
	}
}
