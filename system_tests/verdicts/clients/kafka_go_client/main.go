// A client of the scenario with kafka-go: it reads options and operations as lines of JSON, and
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

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"
)

const (
	libraryPath = "github.com/segmentio/kafka-go"
	pollTime    = 100 * time.Millisecond
	patience    = 20 * time.Second
)

type options struct {
	BootstrapServers string `json:"bootstrap_servers"`
	Group            string `json:"group"`
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
	options options
	writer  *kafka.Writer
	reader  *kafka.Reader
}

func partitionOf(key string) (string, int) {
	at := strings.LastIndex(key, "-")
	partition, _ := strconv.Atoi(key[at+1:])
	return key[:at], partition
}

func (c *client) open() {
	// The writer's records go to a partition that is named by their key.
	named := kafka.BalancerFunc(func(message kafka.Message, _ ...int) int {
		partition, _ := strconv.Atoi(string(message.Key))
		return partition
	})
	c.writer = &kafka.Writer{
		Addr: kafka.TCP(c.options.BootstrapServers), Balancer: named, RequiredAcks: kafka.RequireAll,
		BatchTimeout: time.Millisecond,
	}
	if c.options.Username != "" {
		user := plain.Mechanism{Username: c.options.Username, Password: c.options.Password}
		c.writer.Transport = &kafka.Transport{SASL: user}
	}
}

func (c *client) subscribe(keys []string) {
	topic, _ := partitionOf(keys[0])
	config := kafka.ReaderConfig{
		Brokers: []string{c.options.BootstrapServers}, GroupID: c.options.Group, Topic: topic,
		MaxWait: 50 * time.Millisecond, SessionTimeout: 6 * time.Second,
		HeartbeatInterval: time.Second, CommitInterval: 100 * time.Millisecond,
		StartOffset: kafka.FirstOffset,
	}
	if c.options.Username != "" {
		user := plain.Mechanism{Username: c.options.Username, Password: c.options.Password}
		config.Dialer = &kafka.Dialer{Timeout: patience, DualStack: true, SASLMechanism: user}
	}
	c.reader = kafka.NewReader(config)
}

func (c *client) perform(asked operation) error {
	if asked.Operation == "subscribe" {
		c.subscribe(asked.Keys)
	}
	for _, step := range asked.Steps {
		if err := c.carryOut(step.Send, step.Value); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) carryOut(key string, value int64) error {
	if key == "" {
		limit, cancel := context.WithTimeout(context.Background(), pollTime)
		defer cancel()
		_, err := c.reader.ReadMessage(limit)
		if limit.Err() != nil {
			return nil
		}
		return err
	}
	topic, partition := partitionOf(key)
	limit, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.writer.WriteMessages(limit, kafka.Message{
		Topic: topic, Key: []byte(strconv.Itoa(partition)), Value: []byte(strconv.FormatInt(value, 10)),
	})
}

func (c *client) close() {
	if c.reader != nil {
		_ = c.reader.Close()
	}
	_ = c.writer.Close()
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
	if err := json.Unmarshal(lines.Bytes(), &c.options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	c.open()
	_ = answers.Encode(map[string]string{"client": "kafka-go " + version()})
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
