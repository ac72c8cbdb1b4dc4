// A client of the scenario with sarama: it reads options and operations as lines of JSON, and
// answers each line. An operation that failed is answered with its error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const (
	libraryPath = "github.com/IBM/sarama"
	pollTime    = 100 * time.Millisecond
	// How long the application waits before it calls Consume again after an error.
	pauseTime = time.Second
)

type options struct {
	BootstrapServers string `json:"bootstrap_servers"`
	Group            string `json:"group"`
	Idempotence      bool   `json:"idempotence"`
	Username         string `json:"username"`
	Password         string `json:"password"`
}

type operation struct {
	Operation string   `json:"operation"`
	Keys      []string `json:"keys"`
	Steps     []struct {
		Send  string `json:"send"`
		Value int64  `json:"value"`
	} `json:"steps"`
}

type client struct {
	options  options
	producer sarama.SyncProducer
	consumer sarama.ConsumerGroup
	stop     context.CancelFunc
	stopped  chan struct{}
}

// marking marks each record as processed.
type marking struct{}

func (marking) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (marking) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (marking) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for record := range claim.Messages() {
		session.MarkMessage(record, "")
	}
	return nil
}

func partitionOf(key string) (string, int32) {
	at := strings.LastIndex(key, "-")
	partition, _ := strconv.Atoi(key[at+1:])
	return key[:at], int32(partition)
}

func (c *client) config() *sarama.Config {
	config := sarama.NewConfig()
	if c.options.Username != "" {
		config.Net.SASL.Enable = true
		config.Net.SASL.User, config.Net.SASL.Password = c.options.Username, c.options.Password
	}
	return config
}

func (c *client) open() error {
	config := c.config()
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	if c.options.Idempotence {
		config.Producer.Idempotent = true
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer([]string{c.options.BootstrapServers}, config)
	c.producer = producer
	return err
}

func (c *client) subscribe(keys []string) error {
	config := c.config()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = time.Second
	config.Consumer.MaxWaitTime = pollTime // the least that sarama allows without a warning
	made, err := sarama.NewConsumerGroup([]string{c.options.BootstrapServers}, c.options.Group, config)
	if err != nil {
		return err
	}
	topic, _ := partitionOf(keys[0])
	running, stop := context.WithCancel(context.Background())
	c.consumer, c.stop, c.stopped = made, stop, make(chan struct{})
	go func() {
		defer close(c.stopped)
		for running.Err() == nil {
			if err := made.Consume(running, []string{topic}, marking{}); err != nil {
				time.Sleep(pauseTime)
			}
		}
	}()
	return nil
}

func (c *client) perform(asked operation) error {
	if asked.Operation == "subscribe" {
		return c.subscribe(asked.Keys)
	}
	for _, step := range asked.Steps {
		if step.Send == "" {
			time.Sleep(pollTime) // sarama calls the application with records
			continue
		}
		topic, partition := partitionOf(step.Send)
		value := sarama.StringEncoder(strconv.FormatInt(step.Value, 10))
		record := &sarama.ProducerMessage{Topic: topic, Partition: partition, Value: value}
		if _, _, err := c.producer.SendMessage(record); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) close() {
	if c.consumer != nil {
		c.stop()
		<-c.stopped
		_ = c.consumer.Close()
	}
	_ = c.producer.Close()
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dependency := range info.Deps {
			if dependency.Path == libraryPath {
				return dependency.Version
			}
		}
	}
	return ""
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	c := &client{}
	lines.Scan()
	err := json.Unmarshal(lines.Bytes(), &c.options)
	if err == nil {
		err = c.open()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = answers.Encode(map[string]string{"client": "sarama " + version()})
	for lines.Scan() {
		asked, answer := operation{}, map[string]string{"type": "ok"}
		err := json.Unmarshal(lines.Bytes(), &asked)
		if err == nil {
			err = c.perform(asked)
		}
		if err != nil {
			answer = map[string]string{"type": "unknown", "error": err.Error()}
		}
		_ = answers.Encode(answer)
	}
	c.close()
}
