// Package orders sends orders to Kafka and reads them.
package orders

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
)

const topic = "orders"

// Send sends an order and waits until the broker has acknowledged it.
func Send(ctx context.Context, client *kgo.Client, order string) error {
	return client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(order)}).FirstErr()
}

// First returns the first order of the topic.
func First(ctx context.Context, client *kgo.Client) (string, error) {
	client.AddConsumeTopics(topic)
	fetches := client.PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil {
		return "", err
	}
	return string(fetches.Records()[0].Value), nil
}
