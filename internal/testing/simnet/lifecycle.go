package simnet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// role is the purpose of an account.
type role int

const (
	writer role = iota // an account of the model
	reader             // the hub: follows others, and writes only by hand
)

// birth is an account as it was created.
type birth struct {
	did, handle string
	role        role
}

// births holds all accounts ever created, in order. It only grows.
type births struct {
	mu  sync.Mutex
	all []birth
}

func (b *births) add(one birth) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, one)
}

func (b *births) from(at int) []birth {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all[at:len(b.all):len(b.all)]
}

// Account is the current state of an account.
type Account struct {
	DID    string
	Handle string
	Status string // "" while active; else deactivated, takendown, suspended or deleted
}

// Accounts returns the accounts that write, in the order of creation, including
// deleted ones. The hub is not among them.
func (n *Net) Accounts() []Account {
	ix := n.indexNow()
	defer ix.mu.Unlock()
	var all []Account
	for _, p := range ix.order {
		if p.role == writer {
			all = append(all, p.account())
		}
	}
	return all
}

// Account returns the account of a DID or handle; ok is false if there is none.
func (n *Net) Account(actor string) (a Account, ok bool) {
	ix := n.indexNow()
	defer ix.mu.Unlock()
	p := ix.actor(actor)
	if p == nil {
		return Account{}, false
	}
	return p.account(), true
}

// Deactivate hides an account, as its owner can. Random events do not change a status set
// by hand.
func (n *Net) Deactivate(did string) error { return n.setStatus(did, "deactivated") }

// TakeDown hides an account, as moderators can.
func (n *Net) TakeDown(did string) error { return n.setStatus(did, "takendown") }

// Suspend hides an account temporarily, as moderators can.
func (n *Net) Suspend(did string) error { return n.setStatus(did, "suspended") }

// Delete deletes an account permanently.
func (n *Net) Delete(did string) error { return n.setStatus(did, "deleted") }

// Reactivate makes a hidden account active again.
func (n *Net) Reactivate(did string) error { return n.setStatus(did, "") }

func (n *Net) setStatus(did, status string) error {
	return n.act(did, func(m *model, a *person) error {
		switch {
		case a.status == "deleted":
			return fmt.Errorf("account %s is permanently deleted", did)
		case a.status == status:
			return fmt.Errorf("account %s already has status %q", did, status)
		}
		at := slices.Index(m.accounts, a)
		if at >= 0 && status != "" && a.status == "" && m.activeCount() == 1 {
			return errors.New("the last active account must stay active: the network needs a writer")
		}
		a.status, a.manual = status, true
		if status == "deleted" && at >= 0 {
			m.accounts[at] = m.join()
		}
		e := m.beginEvent(m.clock())
		e.Kind, e.DID, e.Active, e.Status = "account", did, status == "", status
		return nil
	})
}

// Rename changes the handle of an account.
func (n *Net) Rename(did, handle string) error {
	if _, err := syntax.ParseHandle(handle); err != nil {
		return fmt.Errorf("rename %s: %w", did, err)
	}
	handle = strings.ToLower(handle)
	if other, ok := n.Account(handle); ok {
		return fmt.Errorf("rename %s: the handle %s is taken by %s", did, handle, other.DID)
	}
	return n.act(did, func(m *model, a *person) error {
		a.handle = handle
		e := m.beginEvent(m.clock())
		e.Kind, e.DID, e.Handle = "identity", did, handle
		return nil
	})
}

// act performs an action of an account by hand. The events of the action are
// added to the log together; after an error none is added.
func (n *Net) act(did string, do func(m *model, a *person) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := n.model.people[did]
	if a == nil {
		return fmt.Errorf("no account has the DID %q", did)
	}
	seq := n.model.seq
	err := do(n.model, a)
	pending := n.model.pending
	n.model.pending = nil
	if err != nil {
		n.model.seq = seq // no number goes missing
		return err
	}
	for _, e := range pending {
		e.Withheld, e.Curtailed = a.withheld, a.curtailed
	}
	n.log.add(n.items(pending...)...)
	return nil
}

// Withhold makes the relay, and Jetstream behind it, omit what an account does by hand,
// or stop omitting it. The account's repository changes, and no later frame shows the
// omitted changes.
func (n *Net) Withhold(did string, withheld bool) error {
	return n.alterPerson(did, func(a *person) { a.withheld = withheld })
}

// Curtailed is how a relay hides the operations of a commit, which stays signed.
type Curtailed string

// The ways to hide operations.
const (
	CurtailOps  Curtailed = "operations" // it leaves them out
	CurtailPrev Curtailed = "prevData"   // it also names the tree after them as prevData, which is not signed
)

// Curtail makes the relay hide the operations of what an account writes by hand. If how
// is empty, the relay stops hiding them.
func (n *Net) Curtail(did string, how Curtailed) error {
	return n.alterPerson(did, func(a *person) { a.curtailed = how })
}

func (n *Net) alterPerson(did string, do func(a *person)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := n.model.people[did]
	if a == nil {
		return fmt.Errorf("no account has the DID %q", did)
	}
	do(a)
	return nil
}

// beginEvent begins an event that is triggered by hand.
func (m *model) beginEvent(at time.Time) *Entry {
	m.same = nil // no more operations of the previous commit
	e := m.stamp(at)
	m.pending = append(m.pending, e)
	return e
}

func (m *model) activeCount() (count int) {
	for _, a := range m.accounts {
		if a.status == "" {
			count++
		}
	}
	return count
}

// changeStatus hides an account, or makes a hidden one active again. At most a
// quarter of the accounts are hidden, so that the network stays active, and a
// new account replaces a deleted one.
func (m *model) changeStatus(e *Entry) {
	var hidden []*person // at random
	for _, a := range m.accounts {
		if a.status != "" && !a.manual {
			hidden = append(hidden, a)
		}
	}
	full := len(m.accounts)-m.activeCount() >= len(m.accounts)/4
	if len(hidden) == 0 && full { // all hidden accounts are hidden by hand
		m.rename(e)
		return
	}
	if len(hidden) > 0 && (m.rng.IntN(2) == 0 || full) {
		a := pick(m.rng, hidden)
		a.status = ""
		e.Kind, e.DID, e.Active = "account", a.did, true
		return
	}
	a := m.active()
	for range 100 { // an active account that was set by hand may be drawn often
		if !a.manual {
			break
		}
		a = m.active()
	}
	if a.manual {
		m.rename(e)
		return
	}
	a.status = pick(m.rng, []string{"deactivated", "deactivated", "deactivated", "takendown", "suspended", "deleted"})
	e.Kind, e.DID, e.Status = "account", a.did, a.status
	if a.status == "deleted" {
		m.accounts[slices.Index(m.accounts, a)] = m.join()
	}
}
