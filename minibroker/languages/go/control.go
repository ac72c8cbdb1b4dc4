package minibroker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// M is an object of the control API: a fault rule, a topic, an entry of the journal.
type M = map[string]any

// Error is a call that the broker rejected; Code is Kafka's name of the error where it has one.
type Error struct{ Code, Message, Hint string }

func (e *Error) Error() string {
	return strings.TrimSpace(e.Code + ": " + e.Message + " " + e.Hint)
}

// Call sends a request to the control API: Call("GET", nil, nil, "topics", "orders").
// Body and query may be nil.
func (b *Broker) Call(method string, body M, query url.Values, path ...string) (M, error) {
	target := b.base.String() + "/v1"
	for _, part := range path {
		target += "/" + url.PathEscape(part)
	}
	target += "?" + query.Encode()
	var content bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&content).Encode(body); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequest(method, target, &content)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNoContent {
		return nil, nil
	}
	if response.StatusCode < 300 {
		var answer M
		return answer, json.NewDecoder(response.Body).Decode(&answer)
	}
	var failed struct{ Error Error }
	if err := json.NewDecoder(response.Body).Decode(&failed); err != nil {
		return nil, &Error{Code: response.Status}
	}
	return nil, &failed.Error
}

// CreateTopic creates a topic; when it returns, every connection knows it. Configs may be nil.
func (b *Broker) CreateTopic(name string, partitions int, configs map[string]string) error {
	topic := M{"name": name, "partitions": partitions}
	if configs != nil {
		topic["configs"] = configs
	}
	_, err := b.Call("POST", topic, nil, "topics")
	return err
}

// DeleteTopic deletes a topic; when it returns, no connection knows it.
func (b *Broker) DeleteTopic(name string) error {
	_, err := b.Call("DELETE", nil, nil, "topics", name)
	return err
}

// Topics returns all topics.
func (b *Broker) Topics() ([]M, error) { return b.list("topics") }

// Produce produces records with these values; ProduceRecords also sets keys, headers and partitions.
func (b *Broker) Produce(topic string, values ...string) error {
	records := make([]M, len(values))
	for i, value := range values {
		records[i] = M{"value": value}
	}
	return b.ProduceRecords(topic, records...)
}

// ProduceRecords produces records; they are those of POST /v1/topics/{name}/records, e.g.
// M{"key": "7", "value": "paid"}.
func (b *Broker) ProduceRecords(topic string, records ...M) error {
	_, err := b.Call("POST", M{"records": records}, nil, "topics", topic, "records")
	return err
}

// Messages returns all records of a topic, without waiting.
func (b *Broker) Messages(topic string) ([]M, error) {
	var found []M
	query := url.Values{"limit": {"1000"}}
	for {
		page, err := b.Call("GET", nil, query, "topics", topic, "records")
		if err != nil {
			return nil, err
		}
		found = append(found, objects(page["records"])...)
		if page["has_more"] != true {
			return found, nil
		}
		var positions []string
		next, _ := page["next"].(M)
		for partition, offset := range next {
			positions = append(positions, partition+":"+number(offset))
		}
		query.Set("positions", strings.Join(positions, ","))
	}
}

// WaitFor waits until a topic has so many records, and returns the first ones; it fails after the timeout.
func (b *Broker) WaitFor(topic string, count int, timeout time.Duration) ([]M, error) {
	n := strconv.Itoa(count)
	query := url.Values{"wait": {n}, "limit": {n}, "timeout_ms": {milliseconds(timeout)}}
	answer, err := b.Call("GET", nil, query, "topics", topic, "records")
	return objects(answer["records"]), err
}

// WaitForGroup waits for a group; conditions are "state", "members" and "lag", nil is {"state": "Stable"}.
func (b *Broker) WaitForGroup(id string, conditions map[string]string, timeout time.Duration) (M, error) {
	if len(conditions) == 0 {
		conditions = map[string]string{"state": "Stable"}
	}
	query := url.Values{"group_id": {id}, "timeout_ms": {milliseconds(timeout)}}
	for name, value := range conditions {
		query.Set(name, value)
	}
	return b.Call("GET", nil, query, "groups", "")
}

// Reset deletes all topics, groups and offsets; clients stay connected.
func (b *Broker) Reset() error {
	_, err := b.Call("POST", nil, nil, "reset")
	return err
}

// Clock returns the broker's clock.
func (b *Broker) Clock() (M, error) { return b.Call("GET", nil, nil, "clock") }

// Advance advances the broker's clock: all its clients see the time pass.
func (b *Broker) Advance(by time.Duration) (M, error) {
	return b.Call("POST", M{"advance_ms": by.Milliseconds()}, nil, "clock")
}

// Freeze stops the broker's clock, or lets it run.
func (b *Broker) Freeze(frozen bool) (M, error) {
	return b.Call("POST", M{"freeze": frozen}, nil, "clock")
}

// Fault is a fault rule that was added.
type Fault struct {
	ID     string
	broker *Broker
}

// AddFault adds a fault rule; when it returns, every connection obeys it:
//
//	AddFault(minibroker.M{"action": "error", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "first": 1})
func (b *Broker) AddFault(rule M) (*Fault, error) {
	view, err := b.Call("POST", rule, nil, "faults")
	if err != nil {
		return nil, err
	}
	return &Fault{ID: fmt.Sprint(view["id"]), broker: b}, nil
}

// Faults returns all fault rules with their hits.
func (b *Broker) Faults() ([]M, error) { return b.list("faults") }

// ClearFaults removes all fault rules.
func (b *Broker) ClearFaults() error {
	_, err := b.Call("DELETE", nil, nil, "faults")
	return err
}

// Wait waits until the rule has fired so often, and fails after the timeout.
func (f *Fault) Wait(hits int, timeout time.Duration) error {
	query := url.Values{"hits": {strconv.Itoa(hits)}, "timeout_ms": {milliseconds(timeout)}}
	_, err := f.broker.Call("GET", nil, query, "faults", f.ID, "wait")
	return err
}

// Release releases what the rule holds.
func (f *Fault) Release() error {
	_, err := f.broker.Call("POST", nil, nil, "faults", f.ID, "release")
	return err
}

// Remove removes the rule, and releases what it holds.
func (f *Fault) Remove() error {
	_, err := f.broker.Call("DELETE", nil, nil, "faults", f.ID)
	return err
}

// Journal is what clients and the broker did since StartJournal.
type Journal struct {
	broker *Broker
	after  string
}

// StartJournal records what clients and the broker do, from now on.
func (b *Broker) StartJournal() (*Journal, error) {
	view, err := b.Call("POST", M{"enabled": true}, nil, "journal")
	if err != nil {
		return nil, err
	}
	return &Journal{broker: b, after: number(view["last"])}, nil
}

// Stop stops recording.
func (j *Journal) Stop() error {
	_, err := j.broker.Call("POST", M{"enabled": false}, nil, "journal")
	return err
}

// Entries returns all matching entries, oldest first. Conditions are those of GET /v1/journal, e.g.
// {"kind": "request", "api": "Produce"}; nil selects all.
func (j *Journal) Entries(conditions map[string]string) ([]M, error) {
	var found []M
	query := j.query(conditions)
	for {
		page, err := j.broker.Call("GET", nil, query, "journal")
		if err != nil {
			return nil, err
		}
		found = append(found, objects(page["entries"])...)
		if page["has_more"] != true {
			return found, nil
		}
		query.Set("after", number(found[len(found)-1]["sequence"]))
	}
}

// WaitFor returns the first matching entry, or waits for it and fails after the timeout.
func (j *Journal) WaitFor(conditions map[string]string, timeout time.Duration) (M, error) {
	query := j.query(conditions)
	query.Set("limit", "1")
	deadline := time.Now().Add(timeout)
	for {
		query.Set("wait_ms", milliseconds(time.Until(deadline)))
		page, err := j.broker.Call("GET", nil, query, "journal")
		if err != nil {
			return nil, err
		}
		entries := objects(page["entries"])
		if len(entries) == 0 {
			return nil, fmt.Errorf("no entry with %v within %s", conditions, timeout)
		}
		if entries[0]["kind"] != "lost" || conditions["kind"] == "lost" {
			return entries[0], nil
		}
		query.Set("after", number(entries[0]["sequence"]))
	}
}

func (j *Journal) query(conditions map[string]string) url.Values {
	query := url.Values{"after": {j.after}, "limit": {"1000"}}
	for name, value := range conditions {
		query.Set(name, value)
	}
	return query
}

func (b *Broker) list(name string) ([]M, error) {
	answer, err := b.Call("GET", nil, nil, name)
	return objects(answer[name]), err
}

func objects(list any) []M {
	var found []M
	values, _ := list.([]any)
	for _, value := range values {
		if object, ok := value.(M); ok {
			found = append(found, object)
		}
	}
	return found
}

// number writes an integer of JSON, which Go reads as a float64, without an exponent.
func number(value any) string {
	float, _ := value.(float64)
	return strconv.FormatFloat(float, 'f', -1, 64)
}

func milliseconds(duration time.Duration) string {
	return strconv.FormatInt(max(duration.Milliseconds(), 0), 10)
}
