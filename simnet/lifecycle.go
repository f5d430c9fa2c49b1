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

// role is what an account is there for.
type role int

const (
	writer role = iota // an account of the model
	reader             // the hub, or the account with the crowd: it follows, and writes when told to
	quiet              // one of the crowd, who never writes by itself
)

// birth is an account as it came into the world.
type birth struct {
	did, handle string
	role        role
}

// births is everybody there ever was, in order. It only grows.
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

// Account is one account as the network knows it now.
type Account struct {
	DID    string
	Handle string
	Status string // "" while active; else deactivated, takendown, suspended or deleted
}

// Accounts are those that write, in the order of their birth, deleted ones
// included. The hub and the crowd are not among them.
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

// Account is the account of a DID or a handle; ok is false when there is none.
func (n *Net) Account(actor string) (a Account, ok bool) {
	ix := n.indexNow()
	defer ix.mu.Unlock()
	p := ix.actor(actor)
	if p == nil {
		return Account{}, false
	}
	return p.account(), true
}

// Deactivate hides an account, as its owner does. Chance leaves the statuses
// that were set by hand alone.
func (n *Net) Deactivate(did string) error { return n.setStatus(did, "deactivated") }

// TakeDown hides an account, as moderators do.
func (n *Net) TakeDown(did string) error { return n.setStatus(did, "takendown") }

// Suspend hides an account for a while, as moderators do.
func (n *Net) Suspend(did string) error { return n.setStatus(did, "suspended") }

// Delete ends an account, for good.
func (n *Net) Delete(did string) error { return n.setStatus(did, "deleted") }

// Reactivate shows a hidden account again.
func (n *Net) Reactivate(did string) error { return n.setStatus(did, "") }

func (n *Net) setStatus(did, status string) error {
	return n.happen(did, func(m *model, a *person) error {
		switch {
		case a.status == "deleted":
			return fmt.Errorf("account %s is deleted, which is for good", did)
		case a.status == status:
			return fmt.Errorf("account %s is of status %q already", did, status)
		}
		at := slices.Index(m.accounts, a)
		if at >= 0 && status != "" && a.status == "" && m.activeCount() == 1 {
			return errors.New("the last active account must stay, for somebody has to write")
		}
		a.status, a.held = status, true
		if status == "deleted" && at >= 0 {
			m.accounts[at] = m.join()
		}
		e := m.tell(time.Now())
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
	return n.happen(did, func(m *model, a *person) error {
		a.handle = handle
		e := m.tell(time.Now())
		e.Kind, e.DID, e.Handle = "identity", did, handle
		return nil
	})
}

// happen lets an account do something by hand: what the model is told meanwhile
// goes into the log in one piece, and nothing does after an error.
func (n *Net) happen(did string, do func(m *model, a *person) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := n.model.people[did]
	if a == nil {
		return fmt.Errorf("no account has the DID %q", did)
	}
	seq := n.model.seq
	err := do(n.model, a)
	told := n.model.told
	n.model.told = nil
	if err != nil {
		n.model.seq = seq // no number goes missing
		return err
	}
	n.log.add(n.items(told...)...)
	return nil
}

// tell begins an event that happens by hand.
func (m *model) tell(at time.Time) *Entry {
	m.same = nil // the commit before is over
	e := m.stamp(at)
	m.told = append(m.told, e)
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

// changeStatus hides an account, or shows a hidden one again. A quarter of the
// accounts are hidden at most, so that the network stays alive however long it
// runs, and a new account takes the place of a deleted one.
func (m *model) changeStatus(e *Entry) {
	var hidden []*person // by chance
	for _, a := range m.accounts {
		if a.status != "" && !a.held {
			hidden = append(hidden, a)
		}
	}
	full := len(m.accounts)-m.activeCount() >= len(m.accounts)/4
	if len(hidden) == 0 && full { // by hand, all of them
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
	for range 100 { // a lively one that was set by hand is drawn often
		if !a.held {
			break
		}
		a = m.active()
	}
	if a.held {
		m.rename(e)
		return
	}
	a.status = pick(m.rng, []string{"deactivated", "deactivated", "deactivated", "takendown", "suspended", "deleted"})
	e.Kind, e.DID, e.Status = "account", a.did, a.status
	if a.status == "deleted" {
		m.accounts[slices.Index(m.accounts, a)] = m.join()
	}
}
