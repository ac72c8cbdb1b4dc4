// A process of a workload with franz-go: it reads options and invocations as lines of JSON, and
// writes completions. The results have the same meaning as those of
// minibroker.testing.clients.session.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

const (
	patience    = 20 * time.Second
	pollTime    = 100 * time.Millisecond
	recordsMax  = 20
	lineBytes   = 1 << 20
	libraryPath = "github.com/twmb/franz-go"
)

type options struct {
	BootstrapServers string  `json:"bootstrap_servers"`
	TransactionalID  *string `json:"transactional_id"`
	Group            *string `json:"group"`
	IsolationLevel   string  `json:"isolation_level"`
	Idempotence      *bool   `json:"idempotence"`
	Username         *string `json:"username"`
	Password         string  `json:"password"`
}

type step struct {
	Send   string                `json:"send,omitempty"`
	Value  *int64                `json:"value,omitempty"`
	Offset *int64                `json:"offset,omitempty"`
	Poll   *map[string][][]int64 `json:"poll,omitempty"`
}

type line struct {
	Process       int       `json:"process"`
	Type          string    `json:"type"`
	Operation     string    `json:"operation"`
	Steps         *[]step   `json:"steps,omitempty"`
	Keys          *[]string `json:"keys,omitempty"`
	FromBeginning bool      `json:"from_beginning,omitempty"`
	Rebalanced    []string  `json:"rebalanced,omitempty"`
	Abort         bool      `json:"abort,omitempty"`
	Error         string    `json:"error,omitempty"`
}

type process struct {
	options   options
	producer  *kgo.Client
	consumer  *kgo.Client
	positions map[string]int64
	lock      sync.Mutex
	moved     map[string]bool
}

func within(limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), limit)
}

func partitionOf(key string) (string, int32) {
	at := strings.LastIndex(key, "-")
	partition, _ := strconv.Atoi(key[at+1:])
	return key[:at], int32(partition)
}

func (p *process) connectionSettings() []kgo.Opt {
	settings := []kgo.Opt{kgo.SeedBrokers(p.options.BootstrapServers)}
	if p.options.Username != nil {
		user := plain.Auth{User: *p.options.Username, Pass: p.options.Password}
		settings = append(settings, kgo.SASL(user.AsMechanism()))
	}
	return settings
}

func (p *process) openProducer() error {
	if p.producer != nil {
		p.producer.Close()
	}
	settings := append(p.connectionSettings(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordDeliveryTimeout(patience),
		kgo.ProducerLinger(0),
	)
	if p.options.Idempotence != nil && !*p.options.Idempotence {
		settings = append(settings, kgo.DisableIdempotentWrite())
	}
	if p.options.TransactionalID != nil {
		settings = append(settings,
			kgo.TransactionalID(*p.options.TransactionalID), kgo.TransactionTimeout(patience))
	}
	made, err := kgo.NewClient(settings...)
	if err != nil {
		return err
	}
	p.producer = made
	if p.options.TransactionalID == nil {
		return nil
	}
	limit, cancel := within(patience)
	defer cancel()
	_, _, err = made.ProducerID(limit) // InitProducerId, which fences others
	return err
}

// openConsumer replaces the consumer: of a group if topics are given, else of the positions.
func (p *process) openConsumer(topics []string) error {
	if p.consumer != nil {
		p.consumer.Close()
	}
	level := kgo.ReadCommitted()
	if p.options.IsolationLevel == "read_uncommitted" {
		level = kgo.ReadUncommitted()
	}
	settings := append(p.connectionSettings(),
		kgo.FetchIsolationLevel(level),
		kgo.FetchMaxWait(50 * time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if topics != nil {
		note := func(_ context.Context, _ *kgo.Client, moved map[string][]int32) {
			p.lock.Lock()
			defer p.lock.Unlock()
			for topic, partitions := range moved {
				for _, partition := range partitions {
					p.moved[fmt.Sprintf("%s-%d", topic, partition)] = true
				}
			}
		}
		settings = append(settings,
			kgo.ConsumerGroup(*p.options.Group), kgo.ConsumeTopics(topics...),
			kgo.AutoCommitInterval(100*time.Millisecond),
			kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(time.Second),
			kgo.OnPartitionsAssigned(note), kgo.OnPartitionsRevoked(note),
			kgo.OnPartitionsLost(note))
	} else if len(p.positions) > 0 {
		from := map[string]map[int32]kgo.Offset{}
		for key, offset := range p.positions {
			topic, partition := partitionOf(key)
			if from[topic] == nil {
				from[topic] = map[int32]kgo.Offset{}
			}
			from[topic][partition] = kgo.NewOffset().At(offset)
		}
		settings = append(settings, kgo.ConsumePartitions(from))
	}
	made, err := kgo.NewClient(settings...)
	p.consumer = made
	return err
}

func (p *process) perform(asked line) line {
	done := asked
	done.Type = "ok"
	var err error
	switch asked.Operation {
	case "assign":
		kept := p.positions
		p.positions = map[string]int64{}
		for _, key := range *asked.Keys {
			if !asked.FromBeginning {
				p.positions[key] = kept[key]
			} else {
				p.positions[key] = 0
			}
		}
		err = p.openConsumer(nil)
	case "subscribe":
		topics := map[string]bool{}
		for _, key := range *asked.Keys {
			topic, _ := partitionOf(key)
			topics[topic] = true
		}
		names := []string{}
		for topic := range topics {
			names = append(names, topic)
		}
		err = p.openConsumer(names)
	case "reopen":
		p.positions = map[string]int64{}
		if err = p.openConsumer(nil); err == nil {
			err = p.openProducer()
		}
	default:
		return p.performSteps(asked)
	}
	if err != nil {
		done.Type, done.Error = "unknown", err.Error()
	}
	return done
}

func (p *process) performSteps(asked line) line {
	done := asked
	done.Type, done.Abort = "ok", false
	steps := []step{}
	before := map[string]int64{}
	for key, offset := range p.positions {
		before[key] = offset
	}
	committing, err := p.carryOut(asked, &steps)
	if err != nil {
		done.Error = err.Error()
		done.Type = p.resultOf(asked.Operation, committing)
	} else if asked.Abort {
		done.Type = "fail"
	}
	done.Steps = &steps
	if done.Type != "ok" && p.options.Group == nil {
		p.positions = before
		if err := p.openConsumer(nil); err != nil {
			done.Error = err.Error()
		}
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	for key := range p.moved {
		done.Rebalanced = append(done.Rebalanced, key)
	}
	sort.Strings(done.Rebalanced)
	p.moved = map[string]bool{}
	return done
}

// carryOut says whether a commit was requested, and what failed.
func (p *process) carryOut(asked line, done *[]step) (bool, error) {
	if asked.Operation == "txn" {
		if err := p.producer.BeginTransaction(); err != nil {
			return false, err
		}
	}
	for _, each := range *asked.Steps {
		result, err := p.carryOutStep(each)
		if err != nil {
			return false, err
		}
		*done = append(*done, result)
	}
	if asked.Operation != "txn" {
		return false, nil
	}
	limit, cancel := within(patience)
	defer cancel()
	if asked.Abort {
		return false, p.producer.EndTransaction(limit, kgo.TryAbort)
	}
	return true, p.producer.EndTransaction(limit, kgo.TryCommit)
}

func (p *process) carryOutStep(asked step) (step, error) {
	if asked.Poll != nil {
		return p.poll()
	}
	topic, partition := partitionOf(asked.Send)
	record := &kgo.Record{
		Topic: topic, Partition: partition, Value: []byte(strconv.FormatInt(*asked.Value, 10)),
	}
	limit, cancel := within(patience + 5*time.Second)
	defer cancel()
	if err := p.producer.ProduceSync(limit, record).FirstErr(); err != nil {
		return step{}, err
	}
	asked.Offset = &record.Offset
	return asked, nil
}

func (p *process) poll() (step, error) {
	limit, cancel := within(pollTime)
	defer cancel()
	fetches := p.consumer.PollRecords(limit, recordsMax)
	for _, failed := range fetches.Errors() {
		if limit.Err() == nil {
			return step{}, failed.Err
		}
	}
	polled := map[string][][]int64{}
	for _, record := range fetches.Records() {
		key := fmt.Sprintf("%s-%d", record.Topic, record.Partition)
		value, err := strconv.ParseInt(string(record.Value), 10, 64)
		if err != nil {
			return step{}, err
		}
		polled[key] = append(polled[key], []int64{record.Offset, value})
		if p.options.Group == nil {
			p.positions[key] = record.Offset + 1
		}
	}
	return step{Poll: &polled}, nil
}

// resultOf is the result of a failed operation; the producer is ready for the next one afterwards.
func (p *process) resultOf(operation string, committing bool) string {
	switch {
	case operation == "poll":
		return "fail"
	case operation == "send":
		return "unknown"
	case committing:
		_ = p.openProducer()
		return "unknown"
	}
	limit, cancel := within(patience)
	defer cancel()
	if err := p.producer.EndTransaction(limit, kgo.TryAbort); err != nil {
		_ = p.openProducer()
	}
	return "fail"
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
	lines.Buffer(nil, lineBytes)
	answers := json.NewEncoder(os.Stdout)
	p := &process{positions: map[string]int64{}, moved: map[string]bool{}}
	lines.Scan()
	err := json.Unmarshal(lines.Bytes(), &p.options)
	if err == nil {
		err = p.openProducer()
	}
	if err == nil {
		err = p.openConsumer(nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = answers.Encode(map[string]string{"client": "franz-go " + version()})
	for lines.Scan() {
		var asked line
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_ = answers.Encode(p.perform(asked))
	}
	p.consumer.Close()
	p.producer.Close()
}
